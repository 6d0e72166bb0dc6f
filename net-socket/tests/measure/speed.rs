//! Latency and bandwidth of the socket network over loopback, through the table as the runtime uses it.
//!
//! `cargo run --release -p ccl-net-socket --example speed [-- key=value ...]` prints one line per size:
//! half a round trip (best and median), the bandwidth of a stream with eight messages in flight, and
//! beside it that of a plain blocking TCP socket, to compare with on a machine that is busy.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ccl_plugin_host::{LogFn, MemoryKind, Mr, NetContext, NetPlugin, RecvComm, Request, SendComm};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut settings = vec![("interfaces", "lo=127.0.0.1")];
    settings.extend(arguments.iter().filter_map(|argument| argument.split_once('=')));
    let context = NetPlugin::linked(ccl_net_socket::table())?.init(&settings, LogFn::none())?;
    println!("{:>10} {:>12} {:>12} {:>10} {:>10}", "bytes", "best us", "median us", "GB/s", "plain GB/s");
    for bytes in [8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 4 << 20] {
        let mut halves = ping_pong(&context, bytes)?;
        halves.sort_unstable();
        let (best, median) = (halves[0], halves[halves.len() / 2]);
        let (ours, plain) = (stream(&context, bytes)?, plain(bytes)?);
        println!("{bytes:>10} {:>12.2} {:>12.2} {ours:>10.2} {plain:>10.2}", us(best), us(median));
    }
    Ok(())
}

/// Half round-trip times of one message of `bytes` at a time.
fn ping_pong(context: &NetContext, bytes: usize) -> Fallible<Vec<Duration>> {
    let rounds = (200_000_000 / (bytes + 20_000)).clamp(20, 5_000);
    let (there, back) = (connect(context)?, connect(context)?);
    let (mut far, mut near) = (End::new(back.0, there.1, bytes)?, End::new(there.0, back.1, bytes)?);
    let echo = thread::spawn(move || -> Fallible<()> {
        for _ in 0..rounds {
            far.receive_one()?;
            far.send_one()?;
        }
        Ok(())
    });
    let mut halves = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        near.send_one()?;
        near.receive_one()?;
        halves.push(start.elapsed() / 2);
    }
    echo.join().map_err(|_| "the echo thread panicked")??;
    Ok(halves)
}

/// Bandwidth in 10⁹ bytes per second of messages of `bytes`, eight in flight on either side.
fn stream(context: &NetContext, bytes: usize) -> Fallible<f64> {
    let count = messages_for(bytes);
    let (mut send, mut recv) = connect(context)?;
    let source = vec![1u8; bytes];
    let mr = send.register(source.as_ptr(), bytes, MemoryKind::Host)?;
    let sender = thread::spawn(move || -> Fallible<()> {
        // SAFETY: `source` lives until the thread ends, after the last send.
        windowed(
            count,
            &mut send,
            |send| unsafe { send.send(source.as_ptr(), bytes, 0, &mr) },
            SendComm::test,
        )
    });
    let mut rooms = vec![0u8; bytes * WINDOW];
    let mr = recv.register(rooms.as_mut_ptr(), rooms.len(), MemoryKind::Host)?;
    let (base, mut next, start) = (rooms.as_mut_ptr(), 0, Instant::now());
    let post = |recv: &mut RecvComm| {
        let room = base.wrapping_add(next % WINDOW * bytes);
        // SAFETY: `rooms` lives past the last receive; at most WINDOW are in flight, in order.
        let posted = unsafe { recv.recv(room, bytes, 0, &mr) };
        next += usize::from(matches!(posted, Ok(Some(_))));
        posted
    };
    windowed(count, &mut recv, post, RecvComm::test)?;
    let seconds = start.elapsed().as_secs_f64();
    sender.join().map_err(|_| "the sending thread panicked")??;
    Ok((count * bytes) as f64 / seconds / 1e9)
}

/// Bandwidth of blocking writes and reads of `bytes` on one socket.
fn plain(bytes: usize) -> Fallible<f64> {
    let count = messages_for(bytes);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut send = TcpStream::connect(listener.local_addr()?)?;
    let mut recv = listener.accept()?.0;
    let source = vec![1u8; bytes];
    let sender = thread::spawn(move || (0..count).try_for_each(|_| send.write_all(&source)));
    let (mut room, start) = (vec![0u8; bytes], Instant::now());
    for _ in 0..count {
        recv.read_exact(&mut room)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    sender.join().map_err(|_| "the sending thread panicked")??;
    Ok((count * bytes) as f64 / seconds / 1e9)
}

fn messages_for(bytes: usize) -> usize {
    (500_000_000 / (bytes + 5_000)).clamp(64, 50_000)
}

/// Posts `count` requests, at most `WINDOW` at a time, and waits for them in order.
fn windowed<C, E: std::error::Error + Send + Sync + 'static>(
    count: usize,
    comm: &mut C,
    mut post: impl FnMut(&mut C) -> Result<Option<Request>, E>,
    test: impl Fn(&mut C, &mut Request) -> Result<Option<usize>, E>,
) -> Fallible<()> {
    let (mut flight, mut posted) = (std::collections::VecDeque::new(), 0);
    while posted < count || !flight.is_empty() {
        if posted < count
            && flight.len() < WINDOW
            && let Some(request) = post(comm)?
        {
            flight.push_back(request);
            posted += 1;
        }
        if posted < count && flight.len() < WINDOW {
            continue;
        }
        let Some(oldest) = flight.front_mut() else { break };
        match test(comm, oldest)? {
            Some(_) => drop(flight.pop_front()),
            None => thread::yield_now(),
        }
    }
    Ok(())
}

struct End {
    send: SendComm,
    recv: RecvComm,
    source: Vec<u8>,
    room: Vec<u8>,
    send_mr: Mr,
    recv_mr: Mr,
}

impl End {
    fn new(mut send: SendComm, mut recv: RecvComm, bytes: usize) -> Fallible<End> {
        let (source, mut room) = (vec![1u8; bytes], vec![0u8; bytes]);
        let send_mr = send.register(source.as_ptr(), bytes, MemoryKind::Host)?;
        let recv_mr = recv.register(room.as_mut_ptr(), bytes, MemoryKind::Host)?;
        Ok(End { send, recv, source, room, send_mr, recv_mr })
    }

    fn send_one(&mut self) -> Fallible<()> {
        let mut request = loop {
            // SAFETY: `source` is ours and not changed; we wait for the end.
            let posted =
                unsafe { self.send.send(self.source.as_ptr(), self.source.len(), 0, &self.send_mr) }?;
            if let Some(request) = posted {
                break request;
            }
        };
        while self.send.test(&mut request)?.is_none() {}
        Ok(())
    }

    fn receive_one(&mut self) -> Fallible<()> {
        let mut request = loop {
            // SAFETY: `room` is ours and not touched; we wait for the end.
            let posted =
                unsafe { self.recv.recv(self.room.as_mut_ptr(), self.room.len(), 0, &self.recv_mr) }?;
            if let Some(request) = posted {
                break request;
            }
        };
        while self.recv.test(&mut request)?.is_none() {}
        Ok(())
    }
}

fn connect(context: &NetContext) -> Fallible<(SendComm, RecvComm)> {
    let (handle, mut listener) = context.listen(0)?;
    let mut connecting = context.connect(0, handle)?;
    let (mut send, mut recv) = (None, None);
    loop {
        send = if send.is_some() { send } else { connecting.poll()? };
        recv = if recv.is_some() { recv } else { listener.poll()? };
        if let (Some(_), Some(_)) = (&send, &recv) {
            return send.zip(recv).ok_or_else(|| "both ends are there".into());
        }
    }
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

const WINDOW: usize = 8;
