//! Who is on this host.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ProcessInfo, SeatInfo, SharedMemory, TransportInfo, TransportSettings};
use crate::error::{Error, Result};
use crate::memory::{Mailbox, MemoryFile};

/// This rank as its peers must know it.
pub(super) fn describe(
    settings: &TransportSettings,
    file: Option<&MemoryFile>,
    mailbox: Option<&Mailbox>,
) -> Result<TransportInfo> {
    let mut nonce = [0; 32];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::system("draw random bytes", e, "allow the getrandom system call"))?;
    let known = Known::get();
    let process = ProcessInfo {
        host: settings.host.clone().unwrap_or(known.host),
        host_name: known.host_name,
        number: known.number,
        namespace: known.namespace,
        shares_memory: settings.shared_memory == SharedMemory::Use,
        cpus: cpus(),
    };
    let mailbox = mailbox.map(Mailbox::name);
    let seat = SeatInfo { mailbox, descriptor: file.map_or(-1, MemoryFile::number), nonce };
    Ok(TransportInfo { process: Arc::new(process), seat })
}

/// What does not change while a process lives.
#[derive(Clone)]
struct Known {
    number: u32,
    host: String,
    host_name: String,
    namespace: u64,
}

impl Known {
    fn get() -> Known {
        static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = std::process::id();
        // A fork inherits what its parent knew.
        match &*known {
            Some(known) if known.number == number => known.clone(),
            _ => {
                let found =
                    Known { number, host: identity(), host_name: name(), namespace: process_namespace() };
                known.insert(found).clone()
            }
        }
    }
}

/// A text that two ranks share exactly when they run under the same kernel.
fn identity() -> String {
    let read = |path| std::fs::read_to_string(path).ok().map(|text: String| text.trim().to_owned());
    read("/proc/sys/kernel/random/boot_id")
        .or_else(|| read("/etc/machine-id"))
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// The host's name, for people.
fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Number of the namespace in which process numbers are unique; 0 if it cannot be told.
fn process_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// The CPUs that this thread may run on, a bit each; none if that cannot be told.
fn cpus() -> Vec<u64> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let mut words = Vec::new();
    for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
        words.resize(words.len().max(cpu / 64 + 1), 0);
        words[cpu / 64] |= 1 << (cpu % 64);
    }
    words
}

/// Whether these are known to be CPUs of which none is in both.
pub(super) fn are_apart(some: &[u64], others: &[u64]) -> bool {
    let known = |cpus: &[u64]| cpus.iter().any(|word| *word != 0);
    known(some) && known(others) && some.iter().zip(others).all(|(some, others)| some & others == 0)
}

/// CPUs that some of `infos` may run on: more than each alone where ranks are bound.
pub(super) fn cores<'a>(infos: impl Iterator<Item = &'a TransportInfo>) -> usize {
    let mut all: Vec<u64> = Vec::new();
    let mut last: Option<&Arc<ProcessInfo>> = None;
    for process in infos.map(|info| &info.process) {
        if last.is_some_and(|last| Arc::ptr_eq(last, process)) {
            continue;
        }
        last = Some(process);
        all.resize(all.len().max(process.cpus.len()), 0);
        all.iter_mut().zip(&process.cpus).for_each(|(all, own)| *all |= own);
    }
    let cores: u32 = all.iter().map(|word| word.count_ones()).sum();
    (cores as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apart_are_ranks_that_are_known_to_share_no_cpu() {
        assert!(are_apart(&[1], &[2]) && are_apart(&[1], &[0, 1]) && are_apart(&[0, 4], &[3]));
        assert!(!are_apart(&[3], &[2]) && !are_apart(&[1, 1], &[2, 1]));
        assert!(!are_apart(&[], &[2]) && !are_apart(&[1], &[]) && !are_apart(&[1], &[0]));
    }
}
