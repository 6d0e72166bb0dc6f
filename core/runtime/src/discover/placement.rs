//! Where the library's own threads run: beside the caller's, not on top of them.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Lets the calling thread run on every CPU that a thread of this process may use, except those that
/// one is bound to; on all of them if nothing is left.
///
/// A thread inherits its creator's binding. Without this, progress would be made on the very CPU on
/// which a bound caller computes. Where the system does not say, nothing changes.
pub(crate) fn keep_off_bound_threads() {
    let Some(set) = choose(&masks()) else { return };
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(target: "ccl::progress", %error, "stays where its creator was");
    }
}

/// What each thread of this process may use; nothing for the one that asks.
fn masks() -> Vec<CpuSet> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let own = rustix::thread::gettid();
    let number = |task: std::io::Result<std::fs::DirEntry>| task.ok()?.file_name().to_str()?.parse().ok();
    let threads = tasks.filter_map(number).filter_map(Pid::from_raw).filter(|thread| *thread != own);
    threads.filter_map(|thread| sched_getaffinity(Some(thread)).ok()).collect()
}

fn choose(masks: &[CpuSet]) -> Option<CpuSet> {
    let (mut free, mut all) = (CpuSet::new(), CpuSet::new());
    let bound = |cpu| masks.iter().any(|mask| mask.count() == 1 && mask.is_set(cpu));
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| masks.iter().any(|mask| mask.is_set(*cpu))) {
        all.set(cpu);
        if !bound(cpu) {
            free.set(cpu);
        }
    }
    [free, all].into_iter().find(|set| set.count() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    }

    #[test]
    fn bound_threads_keep_their_cpu() {
        assert_eq!(choose(&[set(&[0, 1, 2]), set(&[1])]), Some(set(&[0, 2])));
        assert_eq!(choose(&[set(&[0, 1]), set(&[0, 1])]), Some(set(&[0, 1])));
        assert_eq!(choose(&[set(&[0]), set(&[2, 3])]), Some(set(&[2, 3])));
    }

    #[test]
    fn where_all_are_bound_any_will_do() {
        assert_eq!(choose(&[set(&[0]), set(&[1])]), Some(set(&[0, 1])));
        assert_eq!(choose(&[set(&[5])]), Some(set(&[5])));
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn a_new_thread_leaves_its_creators_cpu() {
        let everywhere = sched_getaffinity(None).unwrap();
        if everywhere.count() < 2 {
            eprintln!("SKIPPED a_new_thread_leaves_its_creators_cpu: one CPU");
            return;
        }
        let first = (0..CpuSet::MAX_CPU).find(|cpu| everywhere.is_set(*cpu)).unwrap();
        let bound = move || {
            sched_setaffinity(None, &set(&[first])).unwrap();
            let inherited = move || {
                assert_eq!(sched_getaffinity(None).unwrap(), set(&[first]));
                keep_off_bound_threads();
                sched_getaffinity(None).unwrap()
            };
            std::thread::spawn(inherited).join().unwrap()
        };
        let placed = std::thread::spawn(bound).join().unwrap();
        assert!(placed.count() > 0 && !placed.is_set(first), "{placed:?}");
    }
}
