//! Local ranks as processes: started, watched, and never left behind.
//!
//! Each rank is a process group of its own, so that a signal reaches whatever it started, and dies
//! with us whatever becomes of us.

pub(crate) mod cpus;
mod environment;
mod output;
pub(crate) mod shim;
mod supervisor;

use std::ffi::OsString;
use std::fmt;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccl::{Error, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use self::supervisor::{Action, Event, Supervisor};

pub(crate) use self::supervisor::Exit;

/// How to start local ranks.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    /// How many.
    pub(crate) n: u32,
    /// What each runs: a program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Variables for all, besides those that number the ranks.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The CPU of each rank.
    pub(crate) cpus: Vec<Option<usize>>,
    /// What becomes of their output.
    pub(crate) output: Output,
    /// How long the others may go on when one has failed.
    pub(crate) grace: Duration,
}

/// What becomes of ranks' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// It is ours.
    Shared,
    /// It is ours, each line after its rank.
    Labelled,
    /// Rank 0's standard output is ours, the others' is dropped; errors are ours.
    FirstOnly,
}

/// The first rank that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Which.
    pub(crate) rank: usize,
    /// Its process.
    pub(crate) pid: u32,
    /// How.
    pub(crate) exit: Exit,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (process {}) {}", self.rank, self.pid, self.exit)
    }
}

impl Team {
    /// Starts the ranks and waits until all have ended; the first failure, if any. Signals to us
    /// reach the ranks. Call from the main thread: ranks end when the thread that started them does.
    pub(crate) fn run(&self) -> Result<Option<Failure>> {
        let events = watch_signals()?;
        let mut started = Started::default();
        let port = environment::free_port()?;
        for rank in 0..self.n {
            started.add(self.command(rank, port), rank, self.output)?;
        }
        let mut supervisor = Supervisor::new(self.n as usize, self.grace);
        started.watch(&mut supervisor, &events)?;
        let outputs = std::mem::take(&mut started.outputs);
        // What a rank left running may keep its output open for ever.
        let until = Instant::now() + OUTPUT_GRACE;
        while outputs.iter().any(|output| !output.is_finished()) && Instant::now() < until {
            if events.recv_timeout(OUTPUT_LOOK).is_ok_and(|signal| ENDING.contains(&signal)) {
                break;
            }
        }
        let failure = |(rank, exit): (usize, Exit)| Failure { rank, pid: started.ranks[rank].id(), exit };
        Ok(supervisor.first_failure().map(failure))
    }

    fn command(&self, rank: u32, port: u16) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ccl").arg(shim::NAME).arg("--parent").arg(std::process::id().to_string());
        if let Some(cpu) = self.cpus.get(rank as usize).copied().flatten() {
            command.arg("--cpu").arg(cpu.to_string());
        }
        command.arg("--").args(&self.command).process_group(0);
        for name in environment::REMOVED {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().cloned());
        command.envs(environment::variables(rank, self.n, port));
        let is_first = rank == 0;
        // A background process group must not read from the terminal.
        let keeps_input = is_first && !std::io::stdin().is_terminal();
        command.stdin(if keeps_input { Stdio::inherit() } else { Stdio::null() });
        match self.output {
            Output::Labelled => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Output::FirstOnly if !is_first => {
                command.stdout(Stdio::null());
            }
            Output::Shared | Output::FirstOnly => {}
        }
        command
    }
}

/// The processes. Whatever happens, dropping them ends those that still run.
#[derive(Default)]
struct Started {
    ranks: Vec<Child>,
    outputs: Vec<JoinHandle<()>>,
    reaped: Vec<bool>,
}

impl Started {
    fn add(&mut self, mut command: Command, rank: u32, output: Output) -> Result<()> {
        let failed = |error| {
            Error::system(
                &format!("start rank {rank}"),
                error,
                "raise the limit on processes, or start fewer",
            )
        };
        let mut child = command.spawn().map_err(failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.ranks.push(child);
        self.reaped.push(false);
        if output == Output::Labelled {
            let rank = rank as usize;
            let stdout = stdout.map(|pipe| output::label(rank, pipe, std::io::stdout)).transpose();
            let stderr = stderr.map(|pipe| output::label(rank, pipe, std::io::stderr)).transpose();
            self.outputs.extend(stdout.map_err(failed)?.into_iter().chain(stderr.map_err(failed)?));
        }
        Ok(())
    }

    /// Waits until all have ended.
    fn watch(&mut self, supervisor: &mut Supervisor, events: &Receiver<i32>) -> Result<()> {
        while !supervisor.is_done() {
            let event = match next(events, supervisor.deadline()) {
                Some(SIGCHLD) => Event::Tick,
                Some(signal) => Event::Asked { signal, ends: ENDING.contains(&signal) },
                None => Event::Tick,
            };
            self.act(supervisor.on(event, Instant::now()), supervisor);
            for (rank, exit) in self.reap()? {
                self.act(supervisor.on(Event::Exited { rank, exit }, Instant::now()), supervisor);
            }
        }
        Ok(())
    }

    fn act(&self, action: Option<Action>, supervisor: &Supervisor) {
        let signal = match action {
            None => return,
            Some(Action::Send(number)) => Signal::from_named_raw(number),
            Some(Action::Terminate) => Some(Signal::TERM),
            Some(Action::Kill) => Some(Signal::KILL),
        };
        for (rank, child) in self.ranks.iter().enumerate() {
            if supervisor.is_running(rank)
                && !self.reaped[rank]
                && let Some(signal) = signal
            {
                send(child, signal);
            }
        }
    }

    /// The ranks that have ended since the last call. What they left behind in their groups ends now,
    /// while their process numbers are still theirs.
    fn reap(&mut self) -> Result<Vec<(usize, Exit)>> {
        let mut ended = Vec::new();
        for (rank, child) in self.ranks.iter_mut().enumerate() {
            if self.reaped[rank] || !has_ended(child) {
                continue;
            }
            send(child, Signal::KILL);
            let status = child.wait().map_err(|error| {
                Error::system(&format!("wait for rank {rank}"), error, "nobody else may reap ccl's children")
            })?;
            self.reaped[rank] = true;
            ended.push((rank, exit_of(status)));
        }
        Ok(ended)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for (child, reaped) in self.ranks.iter_mut().zip(&self.reaped) {
            if !reaped {
                send(child, Signal::KILL);
                let _ = child.wait();
            }
        }
    }
}

/// Our signals, as they come in.
fn watch_signals() -> Result<Receiver<i32>> {
    let advice = "raise the limits on threads and descriptors";
    let failed = |error| Error::system("watch for signals", error, advice);
    let wanted = [SIGCHLD, SIGUSR1, SIGUSR2].into_iter().chain(ENDING);
    let mut signals = Signals::new(wanted).map_err(failed)?;
    let (sender, receiver) = mpsc::channel();
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(forward).map_err(failed)?;
    Ok(receiver)
}

/// The next signal; nothing when the deadline has passed.
fn next(events: &Receiver<i32>, deadline: Option<Instant>) -> Option<i32> {
    // Without a deadline a look now and then costs nothing, and heals a signal that got lost.
    let left = deadline.map_or(IDLE, |deadline| deadline.saturating_duration_since(Instant::now()));
    events.recv_timeout(left).ok()
}

/// Whether a child has ended; it stays to be waited for.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return false };
    // An error means there is no such child any more: waiting for it says the rest.
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

/// Sends a signal to a child and all it started. That it has ended meanwhile is no error.
fn send(child: &Child, signal: Signal) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, signal);
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

/// Signals that ask a program to end.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// How long output is copied after all ranks have ended, if somebody else has it open.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);
/// How often it is looked whether that is over.
const OUTPUT_LOOK: Duration = Duration::from_millis(10);
/// How often to look at the ranks when nothing happens.
const IDLE: Duration = Duration::from_secs(1);
