//! Holding a plugin to a clause: here, or in a process of its own.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::breach::{Outcome, Stop, skip};
use crate::clauses::{env, net, profiler};
use crate::pulse::Pulse;
use crate::{Clause, Verdict};

/// What is checked, and how.
#[derive(Clone)]
pub struct Subject {
    plugin: Plugin,
    /// How long a call may run, and anything that must come may take, before that is a breach.
    pub patience: Duration,
}

/// A plugin of some kind: how it is loaded and driven.
#[derive(Clone)]
enum Plugin {
    Net(net::Net),
    Profiler(profiler::Profiler),
    Env(env::Env),
}

/// How clauses of some kind are run; what was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    Net(fn(&net::Stage) -> Outcome<String>),
    Profiler(fn(&profiler::Stage) -> Outcome<String>),
    Env(fn(&env::Stage) -> Outcome<String>),
}

/// Loads a plugin; what is wrong with its table if it cannot be had.
pub(crate) type Load<P> = Arc<dyn Fn() -> Result<P, String> + Send + Sync>;

impl From<net::Net> for Subject {
    fn from(net: net::Net) -> Subject {
        Subject { plugin: Plugin::Net(net), patience: PATIENCE }
    }
}

impl From<profiler::Profiler> for Subject {
    fn from(profiler: profiler::Profiler) -> Subject {
        Subject { plugin: Plugin::Profiler(profiler), patience: PATIENCE }
    }
}

impl From<env::Env> for Subject {
    fn from(env: env::Env) -> Subject {
        Subject { plugin: Plugin::Env(env), patience: PATIENCE }
    }
}

impl Plugin {
    /// Loads the plugin and holds it to a clause; why it cannot be loaded.
    fn play(&self, run: Run, pulse: &Arc<Pulse>) -> Result<Outcome<String>, String> {
        Ok(match (self, run) {
            (Plugin::Net(net), Run::Net(run)) => run(&net.stage(pulse)?),
            (Plugin::Profiler(profiler), Run::Profiler(run)) => run(&profiler.stage(pulse)?),
            (Plugin::Env(env), Run::Env(run)) => run(&env.stage(pulse)?),
            _ => skip("is a clause of another kind of plugins"),
        })
    }
}

/// Holds the plugin to a clause, in this process. A call that never returns is a breach, and goes on on the
/// thread where it was made.
pub fn judge(clause: &Clause, subject: &Subject) -> Verdict {
    let pulse = Arc::new(Pulse::new(subject.patience));
    let (send, verdict) = mpsc::channel();
    let (plugin, run, noted) = (subject.plugin.clone(), clause.run, Arc::clone(&pulse));
    let patience = subject.patience;
    let is_table = clause.name == "table";
    thread::spawn(move || {
        // Nobody is there any more if it took too long.
        let _ = send.send(play(run, &plugin, &noted, is_table));
    });
    let begun = Instant::now();
    loop {
        match verdict.recv_timeout(LOOK_EVERY) {
            Ok(verdict) => return verdict,
            Err(RecvTimeoutError::Disconnected) => {
                return Verdict::Breach(
                    "the check itself panicked; its words are on standard error".to_owned(),
                );
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(call) = pulse.stuck() {
            return Verdict::Breach(format!(
                "blocks: expected {call} to return at once, found it still running after {patience:?}"
            ));
        }
        if begun.elapsed() > CLAUSE_OVER_CALL * patience {
            return Verdict::Breach(format!(
                "expected the clause to end within {:?}, found it going on",
                begun.elapsed()
            ));
        }
    }
}

/// What the process that [`judge_apart`] starts writes to standard output.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn report(verdict: &Verdict) -> io::Result<()> {
    let words = verdict.words().replace('\n', " ");
    let mut out = io::stdout().lock();
    // What the plugin printed may have left a line open.
    write!(out, "\n{MARK}{} {words}\n", verdict.name())?;
    out.flush()
}

/// Runs a command that calls [`judge`] and [`report`], and reads the verdict from it. A command that is
/// ended by a signal, ends without a verdict, or does not end is a breach.
///
/// # Errors
///
/// The command cannot be started or waited for.
pub fn judge_apart(mut command: Command, patience: Duration) -> io::Result<Verdict> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = wait(&mut child, (CLAUSE_OVER_CALL + 1) * patience)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let (out, err) = (out.text(), err.text());
    let told = out.lines().rev().find_map(|line| line.strip_prefix(MARK)).and_then(parse);
    Ok(match (told, status) {
        (Some(Verdict::Ok(_)) | None, Some(status)) if status.signal().is_some() => {
            Verdict::Breach(ended(status, &err))
        }
        (Some(Verdict::Ok(_)) | None, None) => Verdict::Breach(format!(
            "blocks: expected the process to end, found it going on after {:?}",
            (CLAUSE_OVER_CALL + 1) * patience
        )),
        (Some(verdict), _) => verdict,
        (None, Some(status)) => Verdict::Breach(ended(status, &err)),
    })
}

fn play(run: Run, plugin: &Plugin, pulse: &Arc<Pulse>, is_table: bool) -> Verdict {
    let outcome = match plugin.play(run, pulse) {
        Ok(outcome) => outcome,
        Err(why) if is_table => return Verdict::Breach(why),
        Err(_) => return Verdict::Skipped("its table cannot be used".to_owned()),
    };
    match (outcome, pulse.complaint()) {
        (Err(Stop::Breach(words)), _) | (_, Some(words)) => Verdict::Breach(words),
        (Err(Stop::Skip(why)), None) => Verdict::Skipped(why),
        (Ok(words), None) => Verdict::Ok(words),
    }
}

fn parse(line: &str) -> Option<Verdict> {
    let (name, words) = line.split_once(' ')?;
    let make = match name {
        "ok" => Verdict::Ok,
        "breach" => Verdict::Breach,
        "skipped" => Verdict::Skipped,
        _ => return None,
    };
    Some(make(words.to_owned()))
}

/// A process that ended without a verdict, or badly after one.
fn ended(status: ExitStatus, said: &str) -> String {
    let mut words = match status.signal() {
        Some(signal) => format!("crashes: expected the process to go on, found it ended by signal {signal}"),
        None => format!("expected the process to go on, found it ended with {status}"),
    };
    let last: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in &last[last.len().saturating_sub(LAST_LINES)..] {
        // Writing to a String cannot fail.
        let _ = write!(words, "; {}", line.trim());
    }
    words
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

/// What a pipe carries, read on a thread that ends when nobody has the other end any more.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Collected {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&bytes);
    let reader = thread::spawn(move || {
        let (Some(mut pipe), mut some) = (pipe, [0; 4096]) else { return };
        while let Ok(count @ 1..) = pipe.read(&mut some) {
            into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&some[..count]);
        }
    });
    Collected { bytes, reader }
}

struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    /// All of it once the process ended. What that started may still have the pipe: then what there is.
    fn text(&self) -> String {
        let begun = Instant::now();
        while !self.reader.is_finished() && begun.elapsed() < FOR_THE_REST {
            thread::sleep(Duration::from_millis(1));
        }
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

const MARK: &str = "ccl-plugin-check: ";
/// How long what a process said may take to arrive after its end.
const FOR_THE_REST: Duration = Duration::from_secs(5);
/// How long a call may run if nobody says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How much longer than a call a clause may take: the longest has a hundred contexts.
const CLAUSE_OVER_CALL: u32 = 6;
/// Lines of standard error that a crash is told with.
const LAST_LINES: usize = 3;
