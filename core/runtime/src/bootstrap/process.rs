//! Which process a rank is, and whether it still runs.

use std::fs;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A process, as it introduces itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Equal for processes that see each other's pids.
    pub(crate) host_id: u64,
    pub(crate) host: String,
}

/// What the system says about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Life {
    /// It runs or sleeps.
    Running,
    /// A signal or a debugger stopped it.
    Stopped,
    /// It is not there, or only waits to be reaped.
    Gone,
    /// It lives on another host, or the system does not say.
    Unknown,
}

impl Process {
    /// This process.
    pub(crate) fn this() -> Process {
        static KNOWN: Mutex<Option<Process>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // A fork inherits what its parent knew.
        match &*known {
            Some(this) if this.pid == std::process::id() => this.clone(),
            _ => known.insert(Process::look()).clone(),
        }
    }

    fn look() -> Process {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let host = read("/proc/sys/kernel/hostname").trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(read("/proc/sys/kernel/random/boot_id").as_bytes());
        hasher.update(namespace.as_os_str().as_encoded_bytes()).update(host.as_bytes());
        let mut host_id = [0; 8];
        host_id.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Process { pid: std::process::id(), host_id: u64::from_le_bytes(host_id), host }
    }

    /// What the system says about it, seen from `observer`'s host.
    pub(crate) fn life(&self, observer: &Process) -> Life {
        if self.host_id != observer.host_id {
            return Life::Unknown;
        }
        match fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => life_in(&stat),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Life::Gone,
            Err(_) => Life::Unknown,
        }
    }

    /// Whether both are the same process.
    pub(crate) fn same(&self, other: &Process) -> bool {
        self.pid == other.pid && self.host_id == other.host_id
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}, host {}", self.pid, self.host)
    }
}

/// The state letter follows the program's name, which may itself hold parentheses.
fn life_in(stat: &str) -> Life {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    match after_name.chars().next() {
        Some('T' | 't') => Life::Stopped,
        Some('Z' | 'X' | 'x') => Life::Gone,
        Some(_) => Life::Running,
        None => Life::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs() {
        let this = Process::this();
        assert_eq!(this.life(&this), Life::Running);
        let elsewhere = Process { host_id: this.host_id ^ 1, ..this.clone() };
        assert_eq!(elsewhere.life(&this), Life::Unknown);
    }

    #[test]
    fn states_are_read_behind_the_name() {
        assert_eq!(life_in("12 (a) Z (b)) T 1 2"), Life::Stopped);
        assert_eq!(life_in("12 (x) Z 1"), Life::Gone);
        assert_eq!(life_in("12 (x) D 1"), Life::Running);
        assert_eq!(life_in(""), Life::Unknown);
    }
}
