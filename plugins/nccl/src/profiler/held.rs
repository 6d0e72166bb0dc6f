//! Calls whose stop waits for the work that they asked for.
//!
//! From version 5 on NCCL's work is a child of the call. With ccl it may begin when the call has long returned, so the
//! stops of a call, and of the launch it is a part of, are held back until its work has stopped. Work that never
//! comes, because the call failed or events were dropped, is given up when work of a later launch stops.

/// The calls and launches of a communicator that are open to the plugin; `H` is its handle.
pub(crate) struct Held<H> {
    calls: Vec<Call<H>>,
    launches: Vec<Launch<H>>,
}

struct Call<H> {
    id: u64,
    launch: u64,
    handle: H,
    stopped: bool,
    work: Work,
}

struct Launch<H> {
    id: u64,
    handle: H,
    stopped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Expected,
    Open,
    /// Over, or not expected.
    Over,
}

impl<H: Copy> Held<H> {
    pub(crate) fn new() -> Held<H> {
        Held { calls: Vec::new(), launches: Vec::new() }
    }

    /// A launch starts.
    pub(crate) fn launch_started(&mut self, id: u64, handle: H) {
        self.launches.push(Launch { id, handle, stopped: false });
    }

    /// A call of `launch` starts, for which work will follow or not.
    pub(crate) fn call_started(&mut self, id: u64, launch: u64, handle: H, expects_work: bool) {
        if self.calls.len() >= MOST
            && let Some(oldest) = self.calls.iter_mut().find(|call| call.stopped)
        {
            oldest.work = Work::Over;
        }
        let work = if expects_work { Work::Expected } else { Work::Over };
        self.calls.push(Call { id, launch, handle, stopped: false, work });
    }

    /// Work of a call starts: the call's handle, if the call is open.
    pub(crate) fn work_started(&mut self, call: u64) -> Option<H> {
        let call = self.calls.iter_mut().find(|open| open.id == call)?;
        call.work = Work::Open;
        Some(call.handle)
    }

    /// It stops.
    pub(crate) fn work_stopped(&mut self, call: u64) {
        let Some(call) = self.calls.iter_mut().find(|open| open.id == call) else { return };
        call.work = Work::Over;
        let launch = call.launch;
        let earlier = self.calls.iter_mut().filter(|call| call.launch < launch);
        earlier.filter(|call| call.work == Work::Expected).for_each(|call| call.work = Work::Over);
    }

    /// A call or a launch stops, as the host has it.
    pub(crate) fn stopped(&mut self, id: u64) {
        self.calls.iter_mut().filter(|call| call.id == id).for_each(|call| call.stopped = true);
        self.launches.iter_mut().filter(|launch| launch.id == id).for_each(|launch| launch.stopped = true);
    }

    /// Nothing more will come.
    pub(crate) fn all_stopped(&mut self) {
        self.calls.iter_mut().for_each(|call| (call.stopped, call.work) = (true, Work::Over));
        self.launches.iter_mut().for_each(|launch| launch.stopped = true);
    }

    /// The next whose stop need not wait any more, calls before their launch. Asked for until there is none.
    pub(crate) fn next_free(&mut self) -> Option<H> {
        let over = |call: &Call<H>| call.stopped && call.work == Work::Over;
        if let Some(at) = self.calls.iter().position(over) {
            return Some(self.calls.remove(at).handle);
        }
        let (calls, launches) = (&self.calls, &mut self.launches);
        let empty = |launch: &Launch<H>| launch.stopped && calls.iter().all(|call| call.launch != launch.id);
        let at = launches.iter().position(empty)?;
        Some(launches.remove(at).handle)
    }
}

/// Calls that are held at once.
const MOST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn free(held: &mut Held<u64>) -> Vec<u64> {
        std::iter::from_fn(|| held.next_free()).collect()
    }

    /// Launch `id` with one call, `id + 1`, both of which have returned.
    fn returned(held: &mut Held<u64>, id: u64, expects_work: bool) {
        held.launch_started(id, id);
        held.call_started(id + 1, id, id + 1, expects_work);
        held.stopped(id + 1);
        held.stopped(id);
    }

    #[test]
    fn a_call_waits_for_its_work_and_a_launch_for_its_calls() {
        let mut held = Held::new();
        returned(&mut held, 10, true);
        assert_eq!(free(&mut held), []);
        assert_eq!(held.work_started(11), Some(11));
        assert_eq!(free(&mut held), []);
        held.work_stopped(11);
        assert_eq!(free(&mut held), [11, 10]);
        assert_eq!(held.work_started(11), None, "it is gone");
    }

    #[test]
    fn work_that_is_over_first_holds_nothing() {
        let mut held = Held::new();
        held.launch_started(1, 1);
        held.call_started(2, 1, 2, true);
        assert_eq!(held.work_started(2), Some(2));
        held.work_stopped(2);
        assert_eq!(free(&mut held), []);
        held.stopped(2);
        assert_eq!(free(&mut held), [2]);
        held.stopped(1);
        assert_eq!(free(&mut held), [1]);
    }

    #[test]
    fn work_that_never_comes_is_given_up() {
        let mut held = Held::new();
        returned(&mut held, 1, false);
        assert_eq!(free(&mut held), [2, 1], "none was expected");
        returned(&mut held, 10, true);
        returned(&mut held, 20, true);
        held.work_started(21);
        assert_eq!(free(&mut held), []);
        held.work_stopped(21);
        assert_eq!(free(&mut held), [11, 21, 10, 20]);
        for launch in 1..=(MOST as u64 + 3) {
            returned(&mut held, 100 * launch, true);
        }
        assert_eq!(free(&mut held).len(), 2, "the oldest call and its launch: one at a time");
        held.all_stopped();
        assert_eq!(free(&mut held).len(), 2 * (MOST + 2));
    }
}
