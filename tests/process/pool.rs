//! The parent's side: rank processes that live from trial to trial.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ccl_tests::program;

use crate::worker::MARK;

/// Set in the environment of rank processes.
pub(crate) const ROLE: &str = "CCL_TEST_RANK_PROCESS";

/// In the environment of rank processes: settings of theirs, as `NAME=VALUE,...`.
pub(crate) const SETTINGS: &str = "CCL_TEST_SETTINGS";

/// One rank process. Dropping it ends it.
pub(crate) struct Worker {
    child: Child,
    commands: Option<ChildStdin>,
    answers: Receiver<(Instant, String)>,
    /// What it held before its first communicator.
    fresh: String,
}

impl Worker {
    /// Starts a process and waits until it answers.
    pub(crate) fn start() -> Worker {
        Worker::start_with("")
    }

    /// The same with settings, `NAME=VALUE,...`.
    pub(crate) fn start_with(settings: &str) -> Worker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_of_a_test", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .env(SETTINGS, settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(MARK) {
                    let _ = sender.send((Instant::now(), answer.to_owned()));
                }
            }
        });
        let mut worker = Worker { child, commands, answers, fresh: String::new() };
        worker.fresh = worker.resources();
        worker
    }

    /// Gives a command.
    pub(crate) fn tell(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("only dropping takes it");
        commands.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// The next answer and when it came; `None` if the process ended.
    pub(crate) fn answer(&self) -> Option<(Instant, String)> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no answer within {PATIENCE:?}"),
        }
    }

    /// Waits for the answer `expected`; another final answer comes back as an error.
    pub(crate) fn until(&self, expected: &str) -> Result<(), String> {
        loop {
            match self.answer() {
                Some((_, answer)) if answer == expected => return Ok(()),
                Some((_, answer)) if is_final(&answer) => return Err(answer),
                Some(_) => {}
                None => return Err("the process ended".into()),
            }
        }
    }

    /// The answer that ends a join, and when it came.
    pub(crate) fn result(&self) -> (Instant, Result<(), String>) {
        loop {
            let (at, answer) = self.answer().expect("a surviving rank lives");
            match answer.strip_prefix("error ") {
                Some(error) => return (at, Err(error.to_owned())),
                None if is_final(&answer) => return (at, Ok(())),
                None => {}
            }
        }
    }

    /// A unique id whose root lives in this process. If joining fails, the root stays for the time of
    /// joining, to tell latecomers why.
    pub(crate) fn make_id(&mut self, init_timeout: &str) -> String {
        self.tell(&format!("make {init_timeout}"));
        let (_, answer) = self.answer().expect("the process lives");
        answer.strip_prefix("id ").expect("make answers an id").to_owned()
    }

    /// Panics if the process holds more than when it was fresh, for longer than a moment.
    pub(crate) fn expect_nothing_left(&mut self) {
        let started = Instant::now();
        loop {
            let now = self.resources();
            if now == self.fresh {
                return;
            }
            assert!(started.elapsed() < LINGER, "left behind: {now}; at first: {}", self.fresh);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the process with signal 9 and waits for its end; when it was killed.
    pub(crate) fn kill(&mut self) -> Instant {
        let at = Instant::now();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        at
    }

    fn resources(&mut self) -> String {
        self.tell("resources");
        self.answer().expect("the process lives").1
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Settings with which what ranks must know of each other goes through the roots, and with which it goes out of band,
/// over the network that is built in and over the same as a plugin.
pub(crate) fn bands() -> [String; 3] {
    let plugin = program::socket_plugin();
    [
        "",
        "NCCL_OOB_NET_ENABLE=1",
        &format!("CCL_OOB_NET_ENABLE=1,CCL_OOB_NET_IFNAME=^nosuch,CCL_NET_PLUGIN={}", plugin.display()),
    ]
    .map(str::to_owned)
}

/// Tells workers, in rank order, to join; the first makes the id.
pub(crate) fn join(workers: &mut [&mut Worker], init_timeout: &str, work: &str) -> String {
    let id = workers[0].make_id(init_timeout);
    join_with(workers, &id, init_timeout, work);
    id
}

/// [`join`] with an id made before.
pub(crate) fn join_with(workers: &mut [&mut Worker], id: &str, init_timeout: &str, work: &str) {
    let n = workers.len();
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("join {id} {rank} {n} {init_timeout} {work}"));
    }
}

/// The names in /dev/shm.
pub(crate) fn shared_memory_files() -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

fn is_final(answer: &str) -> bool {
    answer == "ok" || answer.starts_with("error ")
}

const PATIENCE: Duration = Duration::from_secs(120);
/// How long threads and descriptors of a communicator that was dropped may take to go.
const LINGER: Duration = Duration::from_secs(5);
