//! Which CPUs ranks run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs this process may use, in order. Empty if the system does not say.
pub(crate) fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The CPU of each of n ranks, in turn; nothing where ranks outnumber CPUs and would only be in each
/// other's way.
pub(crate) fn assign(n: u32, allowed: &[usize]) -> Vec<Option<usize>> {
    let enough = n as usize <= allowed.len();
    (0..n as usize).map(|rank| allowed.get(rank).copied().filter(|_| enough)).collect()
}

/// Binds this thread, and those it starts from now on, to one CPU.
pub(crate) fn bind(cpu: usize) -> ccl::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| {
        ccl::Error::system(&format!("bind to CPU {cpu}"), error, "leave ranks unbound with --no-pin")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_bound_only_where_each_has_a_cpu() {
        assert_eq!(assign(2, &[3, 5, 7]), [Some(3), Some(5)]);
        assert_eq!(assign(3, &[3, 5]), [None; 3]);
    }

    #[test]
    fn this_process_may_run_somewhere() {
        assert!(!allowed().is_empty());
    }
}
