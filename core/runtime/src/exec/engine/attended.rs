//! Calls that somebody must be told of: a profiler, or the device that carries them out.

use std::sync::Arc;

use ccl_plan::Rank;
use ccl_plan::layout::Tables;

use super::Engine;
use super::ending::unlike;
use crate::error::{Error, Fault, Result};
use crate::exec::device::{
    Addresses, Call, DeviceEngine, DeviceWindow, Notice, Registered, Registration, Staged, Target,
    not_of_the_host, register_window,
};
use crate::exec::host::{Operation, OwnedTables, Poll, Reason, is_message};
use crate::request::{Bound, Buffers, Request};
use crate::stream::Turn;
use crate::transport;

impl Engine {
    /// [`Engine::run`] where somebody must be told; nothing if nobody wants to know of this call.
    #[cold]
    pub(super) fn run_attended(&mut self, request: &mut Request<'_>) -> Option<Result<()>> {
        if self.device.is_some() {
            return Some(self.stage(request, None, false).and_then(|()| self.finish()));
        }
        if !self.profile.as_mut().is_some_and(|profile| profile.heeds(request.collective)) {
            return None;
        }
        self.launch(request, 0);
        let outcome = self.run_through::<true>(request);
        self.land();
        Some(outcome)
    }

    /// The device that this rank works on.
    pub(crate) fn device(&self) -> Option<&DeviceEngine> {
        self.device.as_deref()
    }

    /// How a peer is reached, and why.
    pub(crate) fn path(&self, peer: Rank) -> Result<transport::Path> {
        self.is_awake()?;
        let path = self.fabric.path(peer)?;
        let Some(device) = &self.device else { return Ok(path) };
        Ok(match device.why_proxied(peer) {
            None => transport::Path::new(transport::PathKind::P2p, "the devices reach each other"),
            Some(reason) => {
                transport::Path { reason: format!("{}; through the host: {reason}", path.reason), ..path }
            }
        })
    }

    /// Queues a call on host memory for the device, where it is copied and back. The next poll launches it.
    pub(super) fn stage(
        &mut self,
        request: &mut Request<'_>,
        turn: Option<Turn<'_>>,
        is_grouped: bool,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let bound = self.check(request)?;
        self.check_turn(turn, &bound)?;
        let staged = staged(&mut request.buffers, &bound);
        let call = self.number(bound, request.tables().as_ref())?;
        let Some(device) = &mut self.device else { return Err(Error::bug("a call is staged for no device")) };
        let done = device.stage(call, (staged, turn.map(Turn::take)), is_grouped, &mut self.fabric);
        done.map_err(|error| self.launch_failed(error.on(self.rank).during(bound.collective.name())))
    }

    /// Queues a call on memory given by address: for the device's stream, or here like any other if the rank works on
    /// host memory. [`Engine::launch_queued`] follows.
    pub(crate) fn start_at(
        &mut self,
        request: &mut Request<'_>,
        at: Addresses<'_>,
        (turn, is_grouped): (Turn<'_>, bool),
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let (bound, target) =
            self.admit(request, at, (turn, is_grouped)).map_err(|error| match error.fault() {
                Fault::Usage => error,
                _ => self.launch_failed(error),
            })?;
        let Some(target) = target else {
            return self.submit_bound(bound, request.tables().as_ref(), turn);
        };
        let name = bound.collective.name();
        let call = self.number(bound, request.tables().as_ref())?;
        let Some(device) = &mut self.device else { return Err(Error::bug("a device went away")) };
        let enqueued = device.enqueue(call, target, &mut self.fabric);
        enqueued.map_err(|error| self.launch_failed(error.on(self.rank).during(name)))
    }

    /// Refuses what [`Engine::start_at`] would refuse in a group; nothing happens.
    pub(crate) fn check_at_ahead(
        &mut self,
        request: &Request<'_>,
        at: Addresses<'_>,
        turn: Turn<'_>,
    ) -> Result<()> {
        self.is_awake()?;
        match self.admit(request, at, (turn, true)) {
            Err(error) if *error.fault() == Fault::Usage => Err(error),
            // Anything else fails the call itself.
            _ => Ok(()),
        }
    }

    /// What a call on memory given by address is bound to, and where it goes if the rank works on a device. Nothing
    /// happens.
    fn admit(
        &mut self,
        request: &Request<'_>,
        at: Addresses<'_>,
        (turn, is_grouped): (Turn<'_>, bool),
    ) -> Result<(Bound, Option<Target>)> {
        let name = request.collective.name();
        let admit = |engine: &mut Engine| {
            if engine.device.is_none() && at.is_on_device() {
                return Err(not_of_the_host());
            }
            let bound = request.bind_at(at, engine.rank, engine.n)?;
            let Some(device) = &mut engine.device else {
                // CUDA streams do not order what is done on host memory.
                let is_ordered = turn.stream().device().is_none();
                return if is_ordered { turn.check() } else { Ok(()) }.map(|()| (bound, None));
            };
            let bytes = request.lengths_at(engine.rank, engine.n)?;
            let stream = turn.stream().device().ok_or_else(no_cuda_stream)?;
            let target = device.accept((&bound, bytes), stream, is_grouped)?;
            Ok((bound, Some(target)))
        };
        admit(self).map_err(|error| error.on(self.rank).during(name))
    }

    /// Registers device memory, for this rank alone.
    pub(crate) fn register_on_device(&mut self, memory: &Registered<'_>) -> Result<Registration> {
        self.is_awake()?;
        let registered = match &mut self.device {
            Some(device) => device.register(memory),
            None => Err(not_of_the_host()),
        };
        registered.map_err(|error| error.on(self.rank).during("register"))
    }

    /// Registers device memory together with all other ranks.
    pub(crate) fn register_window(&mut self, memory: &Registered<'_>) -> Result<DeviceWindow> {
        self.is_awake()?;
        self.finish()?;
        let _relaxed = self.device.as_ref().and_then(|device| device.leave_captures_alone());
        let control = Arc::clone(&self.control);
        let gather = |bytes| control.all_gather(bytes);
        self.hear_of_windows();
        let notice = self.notice();
        let registered = register_window(self.device.as_deref_mut(), (self.rank, memory), (&gather, notice));
        registered.map_err(|error| match error.fault() {
            Fault::Usage => error.on(self.rank).during(REGISTER_WINDOW),
            _ => self.lost(error, REGISTER_WINDOW),
        })
    }

    /// How others hear that this rank will not lend a window any more.
    fn notice(&self) -> Notice {
        let control = Arc::downgrade(&self.control);
        Box::new(move |readers, window| {
            let Some(control) = control.upgrade().filter(|control| !control.alarm().raised()) else { return };
            for rank in readers {
                // Who does not hear of it keeps what it has until all register again, or its communicator goes.
                let _ = control.send(*rank, WINDOW_TOPIC, window.to_le_bytes().to_vec());
            }
        })
    }

    /// Lets go of windows that other ranks will not lend any more.
    pub(super) fn hear_of_windows(&mut self) {
        let Some(device) = &mut self.device else { return };
        for rank in device.lenders() {
            while let Some(bytes) = self.control.try_take(rank, WINDOW_TOPIC) {
                if let Ok(window) = bytes.as_slice().try_into() {
                    device.let_go(rank, u32::from_le_bytes(window));
                }
            }
        }
    }

    /// A number of the communicator, the same on all ranks.
    pub(crate) fn number_of_all(&self) -> Result<u64> {
        self.fabric.number()
    }

    /// Launches what [`Engine::start_at`] queued for the device, and messages of the group that ends here. Waits for nothing.
    pub(crate) fn launch_queued(&mut self) -> Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let launched = device.launch_waiting(&mut self.fabric, true);
        let name = device.oldest().map_or("enqueue", |call| call.bound.collective.name());
        match launched {
            Ok(_) => Ok(()),
            Err(error) => Err(self.launch_failed(error.on(self.rank).during(name))),
        }
    }

    /// The first error, if the communicator has failed; on a device also what the device says now.
    pub(crate) fn failure_now(&mut self) -> Option<Error> {
        if self.device.is_some() && self.failed.is_none() {
            // What it says is kept.
            let _ = self.poll();
        }
        self.failure()
    }

    /// A call of a device rank with what was decided of it, and its number.
    fn number(&mut self, bound: Bound, tables: Option<&Tables<'_>>) -> Result<Call> {
        self.hear_of_windows();
        let decision = Arc::clone(self.plans.decide(&bound, tables, &mut self.fabric)?);
        let mut owned = OwnedTables::default();
        if let Some(tables) = tables {
            owned.store(*tables);
            owned.face_root(bound.collective, self.rank, bound.root);
        }
        let (sequence, tag) = self.numbers.next(&bound, &decision, &self.board);
        Ok(Call { bound, tables: owned, decision, sequence, tag })
    }

    /// Queues a checked call of a rank that works on host memory, which CUDA streams do not order.
    fn submit_bound(&mut self, bound: Bound, tables: Option<&Tables<'_>>, turn: Turn<'_>) -> Result<()> {
        let turn = Some(turn).filter(|turn| turn.stream().device().is_none());
        let mut operation: Box<Operation> = self.blank(bound, tables)?;
        if let Some(tables) = tables {
            operation.tables.store(*tables);
            operation.tables.face_root(bound.collective, self.rank, bound.root);
        }
        (operation.sequence, operation.tag) = self.numbers.next(&bound, &operation.decision, &self.board);
        let gate = turn.map(Turn::take);
        self.queue.push_back(super::Queued { operation, started: false, gate });
        Ok(())
    }

    /// One round of a device's work.
    pub(super) fn poll_device(&mut self) -> Result<Poll> {
        self.look_for_alarm()?;
        let Some(device) = &mut self.device else { return Err(Error::bug("no device to poll")) };
        let polled = device.poll(&mut self.fabric).map_err(|stop| stop.reason());
        let polled = polled.map_err(|reason| self.device_stopped(reason))?;
        self.fabric.progress().map_err(|error| self.control.report(error.on(self.rank)))?;
        Ok(match polled {
            Poll::Done if !self.fabric.is_flushed() => Poll::Stalled,
            polled => polled,
        })
    }

    #[cold]
    fn device_stopped(&mut self, reason: Reason) -> Error {
        let call = self.device.as_ref().and_then(|device| device.oldest());
        let (sequence, message) = call.map_or((0, false), |call| (call.sequence, is_message(&call.bound)));
        let name = call.map(|call| call.bound.collective.name());
        match reason {
            Reason::Mismatch { peer, detail } if message => {
                self.control.report(unlike(peer, detail).on(self.rank))
            }
            Reason::Mismatch { peer, .. } => self.control.diagnose(sequence, Some(peer)).with_peer(peer),
            Reason::Failed(error) => {
                let error = error.on(self.rank);
                self.control.report(name.map_or(error.clone(), |name| error.during(name)))
            }
        }
    }

    /// A launch that failed fails the communicator, unless nothing has happened: other ranks have begun theirs.
    #[cold]
    fn launch_failed(&mut self, error: Error) -> Error {
        let error = self.control.report(error);
        self.fail(error)
    }
}

/// The host memory of a request that was bound so.
fn staged(buffers: &mut Buffers<'_>, bound: &Bound) -> Staged {
    match buffers {
        Buffers::Separate { send, recv } => Staged {
            send: (send.as_ptr(), send.len()),
            recv: (recv.as_mut_ptr(), recv.len()),
            in_place: None,
        },
        Buffers::InPlace(buffer) => {
            let base = buffer.as_mut_ptr();
            let offsets = (bound.send.addr() - base.addr(), bound.recv.addr() - base.addr());
            Staged { send: (base, 0), recv: (base, buffer.len()), in_place: Some(offsets) }
        }
    }
}

#[cold]
fn no_cuda_stream() -> Error {
    let advice = "make it by Stream::on_device or Stream::cuda";
    Error::usage("expected a CUDA stream for a rank that works on a device, found a host stream", advice)
}

/// Under which ranks tell each other of windows that they will not lend any more. No network's.
const WINDOW_TOPIC: u32 = 0x5700_0000;
/// What registering a window is called in errors.
const REGISTER_WINDOW: &str = "register_window";
