//! Which CPUs ranks run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs this process may use, in order. Empty if the system does not say.
pub(crate) fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The CPU of each of n ranks: one each, or as many consecutive ranks on each CPU as on any other; nothing
/// where ranks outnumber CPUs and some would have to share one with more others than the rest.
pub(crate) fn assign(n: u32, allowed: &[usize]) -> Vec<Option<usize>> {
    let n = n as usize;
    let each = n.div_ceil(allowed.len().max(1));
    let even = each == 1 || each * allowed.len() == n;
    (0..n).map(|rank| allowed.get(rank / each).copied().filter(|_| even)).collect()
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
    fn ranks_are_bound_where_each_has_as_much_of_a_cpu() {
        assert_eq!(assign(2, &[3, 5, 7]), [Some(3), Some(5)]);
        assert_eq!(assign(4, &[3, 5]), [Some(3), Some(3), Some(5), Some(5)]);
        assert_eq!(assign(3, &[3, 5]), [None; 3]);
        assert_eq!(assign(2, &[]), [None; 2]);
    }

    #[test]
    fn this_process_may_run_somewhere() {
        assert!(!allowed().is_empty());
    }
}
