//! The special kernels by themselves, for comparison with the interpreter on the same plans.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ccl::{Dtype, ReduceOp};
use ccl_cuda::{CaptureMode, DeviceMemory, Function, GraphExec, Launch, Stream};
use ccl_kernels::special::{Special, SpecialArgs, SpecialPeer, SpecialServed, inbox_bytes, mail_bytes};
use serde_json::json;

use crate::machine::{Machine, Options, Outcome};

/// Times both on every number of bytes that they serve, and checks every element.
pub(crate) fn measure(machine: &Machine, options: &Options) -> Outcome<bool> {
    let n = options.number("ranks", 2)? as u32;
    let mut right = true;
    for special in Special::ALL {
        let kernel = machine.needed(&special.kernel_name(Dtype::F32, ReduceOp::Sum))?;
        for bytes in options.numbers("bytes", &[8, 1 << 10, 1 << 14, 1 << 20, 1 << 26])? {
            if special == Special::OneShot && bytes > ONE_SHOT_MOST_BYTES {
                continue;
            }
            let team = Team::new(machine, special, kernel.clone(), (n, bytes as usize / 4), options)?;
            let (time, wrong) = team.run(machine, Duration::from_millis(options.number("ms", 50)?))?;
            right &= wrong == 0;
            println!(
                "{}",
                json!({ "fact": "special", "kernel": special.algorithm().name(), "ranks": n, "bytes": bytes,
                    "time_us": time.as_secs_f64() * 1e6, "blocks": team.blocks, "wrong": wrong })
            );
        }
    }
    Ok(right)
}

/// All ranks on one device, a thread for each.
struct Team {
    special: Special,
    kernel: Function,
    n: u32,
    count: usize,
    blocks: u32,
    threads: u32,
    windows: Vec<DeviceMemory>,
    inboxes: Vec<DeviceMemory>,
    _mails: Vec<DeviceMemory>,
    epochs: Vec<DeviceMemory>,
    served: Vec<DeviceMemory>,
    /// Where all windows begin.
    bases: DeviceMemory,
    peers: DeviceMemory,
    /// The abort flag, and the record of errors.
    signals: DeviceMemory,
}

impl Team {
    fn new(
        machine: &Machine,
        special: Special,
        kernel: Function,
        (n, count): (u32, usize),
        options: &Options,
    ) -> Outcome<Team> {
        let threads = options.number("threads", 512)? as u32;
        let room = kernel.blocks_per_multiprocessor(threads, special.shared_bytes())?
            * machine.context.device().limits()?.multiprocessors;
        let useful = (count / 4 / threads as usize).max(1) as u32;
        let blocks = (room / n).min(options.number("blocks", 64)? as u32).min(useful).max(1);
        let vector = Team::vector_bytes(count);
        let each = |bytes: usize| (0..n).map(|_| machine.zeros(bytes)).collect::<Outcome<Vec<_>>>();
        let inbox = if special == Special::OneShot { inbox_bytes(n, 4 * count) } else { 0 };
        let (windows, inboxes) = (each(2 * vector)?, each(inbox)?);
        let (mails, epochs) = (each(mail_bytes(n, blocks))?, each(8 * blocks as usize)?);
        let served = each(size_of::<SpecialServed>())?;
        let bases: Vec<u8> = windows.iter().flat_map(|window| window.address().to_le_bytes()).collect();
        let mut peers = Vec::new();
        for rank in 0..n as usize {
            let peer =
                SpecialPeer { inbox: inboxes[rank].address(), mail: mails[rank].address(), reserved: [0; 2] };
            let words = [peer.inbox, peer.mail, 0, 0];
            peers.extend(words.into_iter().flat_map(u64::to_le_bytes));
        }
        let (peers, signals) = (machine.holding(&peers)?, machine.zeros(2 * ERROR_AT as usize)?);
        let stream = machine.stream()?;
        for (rank, window) in windows.iter().enumerate() {
            let input: Vec<u8> =
                (0..count).flat_map(|at| ((at % 13) as f32 + rank as f32).to_le_bytes()).collect();
            window.write(0, &input, &stream)?;
        }
        Ok(Team {
            special,
            kernel,
            n,
            count,
            blocks,
            threads,
            windows,
            inboxes,
            _mails: mails,
            epochs,
            served,
            bases: machine.holding(&bases)?,
            peers,
            signals,
        })
    }

    /// The slowest rank's time of a call; wrong elements of all ranks.
    fn run(&self, machine: &Machine, wanted: Duration) -> Outcome<(Duration, u64)> {
        let first = self.calls(machine, 1)?.max(Duration::from_nanos(100));
        let replays = (wanted.as_secs_f64() / first.as_secs_f64()) as u64 / CALLS;
        let time = self.calls(machine, replays.clamp(3, 100_000))?;
        let stream = machine.stream()?;
        let mut wrong = 0;
        for window in &self.windows {
            let mut found = vec![0; 4 * self.count];
            window.read(Team::vector_bytes(self.count), &mut found, &stream)?;
            let ranks = (0..self.n).map(|rank| rank as f32).sum::<f32>();
            let expected = |at: usize| (at % 13) as f32 * self.n as f32 + ranks;
            let (values, _) = found.as_chunks::<4>();
            let differs = |(at, value): &(usize, &[u8; 4])| f32::from_le_bytes(**value) != expected(*at);
            wrong += values.iter().enumerate().filter(differs).count() as u64;
        }
        Ok((time, wrong))
    }

    /// The slowest rank's time of a call, in so many replays of a graph of them.
    fn calls(&self, machine: &Machine, replays: u64) -> Outcome<Duration> {
        let barrier = Barrier::new(self.n as usize);
        let streams = (0..self.n).map(|_| machine.stream()).collect::<Outcome<Vec<_>>>()?;
        let graphs = streams.iter().enumerate().map(|(rank, stream)| self.graph_of(rank, stream));
        let graphs = graphs.collect::<Outcome<Vec<_>>>()?;
        let times = std::thread::scope(|scope| {
            let rank = |(stream, graph)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    Team::replays(stream, graph, replays)
                })
            };
            let threads: Vec<_> = streams.iter().zip(graphs).map(rank).collect();
            let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked")?);
            joined.collect::<Outcome<Vec<_>>>()
        })?;
        Ok(times.into_iter().max().unwrap_or_default().div_f64((replays * CALLS) as f64))
    }

    /// A rank's calls, one after the other, on the device.
    fn graph_of(&self, rank: usize, stream: &Stream) -> Outcome<GraphExec> {
        let vector = Team::vector_bytes(self.count) as u64;
        let window = self.windows[rank].address();
        let args = SpecialArgs {
            peers: self.peers.address(),
            epochs: self.epochs[rank].address(),
            abort: self.signals.address(),
            error: self.signals.address() + ERROR_AT,
            input: window,
            output: window + vector,
            input_window: self.bases.address(),
            output_window: self.bases.address(),
            windows: 1 << 32 | 1,
            served: self.served[rank].address(),
            count: self.count as u64,
            scalar_bits: 1.0_f64.to_bits(),
            inbox_bytes: self.inboxes[rank].bytes() as u64,
            rank: rank as u32,
            n: self.n,
            ..SpecialArgs::default()
        };
        let launch = Launch {
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            shared_bytes: self.special.shared_bytes() as u32,
            attributes: &[],
        };
        stream.begin_capture(CaptureMode::ThreadLocal)?;
        // SAFETY: the kernel takes one `SpecialArgs`; all that it leads to outlives the graph.
        let launched = (0..CALLS).try_for_each(|_| unsafe { launch.run(&self.kernel, stream, &args) });
        let graph = stream.end_capture();
        launched?;
        let mut exec = graph?.instantiate()?;
        exec.upload(stream)?;
        stream.synchronize()?;
        Ok(exec)
    }

    fn replays(stream: &Stream, mut graph: GraphExec, replays: u64) -> Outcome<Duration> {
        let start = Instant::now();
        for _ in 0..replays {
            // SAFETY: as where it was captured.
            unsafe { graph.launch(stream) }?;
            stream.synchronize()?;
        }
        Ok(start.elapsed())
    }

    fn vector_bytes(count: usize) -> usize {
        (4 * count).next_multiple_of(256)
    }
}

/// Calls of a graph. What is launched one by one on streams of one process may stand still (ADR 0103); graphs never did.
const CALLS: u64 = 16;
/// Where the record of errors is.
const ERROR_AT: u64 = 64;
/// Every rank's inbox holds twice as many bytes of every rank, twice.
const ONE_SHOT_MOST_BYTES: u64 = 1 << 18;
