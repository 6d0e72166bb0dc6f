//! Suspended communicators: their device memory is given back until it is wanted again.
//!
//! All ranks do each step together. None gives memory back before all have let go of it, so nobody looks at what is gone.

use std::sync::Arc;

use ccl_plan::Rank;

use super::Engine;
use crate::error::{Error, Result};
use crate::exec::device::{DeviceEngine, Dormant};
use crate::memory::scratch::Scratch;

/// What a suspended communicator keeps.
pub(super) struct Asleep {
    /// Nothing on a rank that works on host memory.
    device: Option<Dormant>,
}

impl Engine {
    /// See [`Communicator::suspend`](crate::Communicator::suspend).
    pub(crate) fn suspend(&mut self) -> Result<()> {
        if self.asleep.is_some() {
            let cause = "expected a communicator that is not suspended, found one that is";
            return Err(Error::usage(cause, "resume it first").on(self.rank).during(SUSPEND));
        }
        self.finish()?;
        self.hear_of_windows();
        let objector = self.in_graphs().map_err(|error| self.lost(error, SUSPEND))?;
        if let Some(rank) = objector {
            let cause =
                format!("expected no graph that holds calls of this communicator, found one on rank {rank}");
            let advice = "destroy it and all that was made of it, and capture the calls again after resuming";
            return Err(Error::usage(cause, advice).on(self.rank).during(SUSPEND));
        }
        let device = self.give_back().map_err(|error| self.lost(error, SUSPEND))?;
        self.asleep = Some(Asleep { device });
        self.failed = Some(suspended().on(self.rank));
        Ok(())
    }

    /// See [`Communicator::resume`](crate::Communicator::resume).
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.look_for_alarm()?;
        let Some(Asleep { device }) = self.asleep.take() else {
            let cause = "expected a suspended communicator, found one that is not";
            let usage = Error::usage(cause, "suspend it first").on(self.rank).during(RESUME);
            return Err(self.failed.clone().unwrap_or(usage));
        };
        self.failed = None;
        self.wake(device).map_err(|error| self.lost(error, RESUME))
    }

    /// Refuses what cannot be asked of a suspended communicator.
    pub(super) fn is_awake(&self) -> Result<()> {
        match &self.failed {
            Some(suspended) if self.asleep.is_some() => Err(suspended.clone()),
            _ => Ok(()),
        }
    }

    /// The number of this rank's device; `None` if it works on host memory.
    pub(crate) fn device_number(&self) -> Option<u32> {
        let dormant = || self.asleep.as_ref().and_then(|asleep| asleep.device.as_ref()).map(Dormant::ordinal);
        self.device.as_ref().map(|device| device.ordinal()).or_else(dormant)
    }

    /// The first rank with a graph that holds calls, as all ranks hear it. All calls of all ranks are done then.
    fn in_graphs(&self) -> Result<Option<Rank>> {
        let own = self.device.as_ref().is_some_and(|device| device.is_in_graphs());
        let votes = self.control.all_gather(vec![u8::from(own)])?;
        Ok((0..).map(Rank).zip(votes).find(|(_, vote)| vote[..] != [0]).map(|(rank, _)| rank))
    }

    /// Gives memory back once all ranks have let go of it.
    fn give_back(&mut self) -> Result<Option<Dormant>> {
        let _relaxed = self.device.as_ref().and_then(|device| device.leave_captures_alone());
        if let Some(device) = &mut self.device {
            device.leave_peers()?;
        }
        self.control.all_gather(Vec::new())?;
        self.scratch = Scratch::default();
        Ok(self.device.take().map(DeviceEngine::sleep))
    }

    /// What joining does, for a rank that has joined.
    fn wake(&mut self, device: Option<Dormant>) -> Result<()> {
        if let Some(cut) = self.device_cut {
            let control = Arc::clone(&self.control);
            let gather = |bytes| control.all_gather(bytes);
            let (infos, ranks) = (self.fabric.infos()?, (self.rank, self.n));
            self.device = DeviceEngine::wake(device, ranks, infos, cut, (&self.board, &gather))?;
        }
        // Taking memory may wait for kernels that wait for this rank: none runs before all ranks are here.
        self.control.all_gather(Vec::new()).map(drop)
    }

    /// The communicator fails, because this rank could not do its part.
    #[cold]
    pub(super) fn lost(&mut self, error: Error, operation: &'static str) -> Error {
        let error = self.control.report(error.on(self.rank).during(operation));
        self.fail(error)
    }
}

#[cold]
fn suspended() -> Error {
    Error::usage(
        "expected a communicator that is not suspended, found one that is",
        "resume it first, on all ranks",
    )
}

/// What suspending is called in errors.
const SUSPEND: &str = "suspend";
/// The same of resuming.
const RESUME: &str = "resume";
