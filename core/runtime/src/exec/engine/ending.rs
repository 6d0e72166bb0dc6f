//! How an engine ends: it is closed, or it fails.

use ccl_plan::Rank;

use super::Engine;
use crate::comm::closed;
use crate::error::{Error, Fault};
use crate::exec::host::is_message;
use crate::request::Bound;
use crate::transport::Visitors;

impl Engine {
    /// Leaves the communicator. Waits for nobody, but for ranks that use the buffers of calls under way at that moment.
    pub(crate) fn close(mut self) {
        if !self.queue.is_empty() {
            self.let_go(&closed().on(self.rank));
        }
        let _relaxed = self.device.as_ref().and_then(|device| device.leave_captures_alone());
        self.device = None;
        self.control.leave();
        self.fabric.close();
    }

    /// The communicator has failed: nothing more runs here, and no stream waits for it. Unless all ranks know already they are
    /// told, and what is returned, now and by every later call, is the cause that all agree on.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        match &self.failed {
            Some(first) if self.asleep.is_none() => return first.clone(),
            _ => self.asleep = None,
        }
        let on_device = self.device.as_ref().and_then(|device| device.oldest());
        let bound =
            self.queue.front().map(|queued| &queued.operation.bound).or(on_device.map(|call| &call.bound));
        let operation = bound.map(|bound| bound.collective.name());
        let here = |error: Error| {
            let error = error.on(self.rank);
            operation.map_or(error.clone(), |operation| error.during(operation))
        };
        let mut error = here(error);
        if !self.control.alarm().raised() {
            error = here(self.control.report(error));
        }
        self.failed = Some(error.clone());
        let messages = self.messages_under_way();
        self.let_go(&error);
        self.flight.failed(&self.board, &messages);
        error
    }

    /// Ends all operations. No rank uses the buffers of any once this returns, whose borrows end with the error.
    fn let_go(&mut self, error: &Error) {
        self.fabric.abort();
        if let Some(device) = &mut self.device {
            device.abort(error);
        }
        if self.fabric.await_visitors() == Visitors::Stopped {
            self.queue.iter().for_each(|queued| queued.operation.detach(self.n));
        }
        for mut queued in self.queue.drain(..) {
            if let Some(profile) = &mut self.profile {
                profile.end(&mut queued.operation.ticket);
            }
            if let Some(gate) = queued.gate {
                gate.fail(error.clone());
            }
        }
    }

    /// A transport failed under an operation: the root decides what the first cause was.
    pub(super) fn failed_path(&mut self, index: usize, error: Error) -> Error {
        let name = self.queue[index].operation.bound.collective.name();
        self.control.report(error.on(self.rank).during(name))
    }

    /// A peer is in another operation, or in this one with other arguments.
    pub(super) fn mismatched(&mut self, index: usize, peer: Rank, detail: String) -> Error {
        let operation = &self.queue[index].operation;
        if operation.is_message() {
            let name = operation.bound.collective.name();
            return self.control.report(unlike(peer, detail).on(self.rank).during(name));
        }
        self.control.diagnose(operation.sequence, Some(peer)).with_peer(peer)
    }

    /// The deadline passed.
    pub(super) fn overdue(&mut self) -> Error {
        if let Some(call) = self.device.as_ref().and_then(|device| device.oldest()) {
            return match is_message(&call.bound) {
                true => self.unmatched(&call.bound),
                false => self.control.diagnose(call.sequence, None),
            };
        }
        let Some(queued) = self.queue.front() else {
            let cause = format!("expected the network to take what was sent within {:?}", self.deadline);
            let error = Error::new(Fault::Timeout, cause, "check the network, or raise CCL_TIMEOUT");
            return self.control.report(error.on(self.rank));
        };
        let position = queued.operation.position();
        if let Some(peer) = position.waiting_for {
            self.board.wait(position.instruction, peer);
        }
        if queued.operation.is_message() {
            return self.unmatched(&queued.operation.bound);
        }
        self.control.diagnose(queued.operation.sequence, position.waiting_for)
    }

    /// A message whose peer did not come in time.
    fn unmatched(&self, bound: &Bound) -> Error {
        let (peer, deadline) = (bound.root, self.deadline);
        let cause = format!("expected rank {peer} to take part within {deadline:?}, found no matching call");
        let advice = "check that the peer makes the matching call, or raise CCL_TIMEOUT";
        let error = Error::new(Fault::Timeout, cause, advice).with_peer(peer).on(self.rank);
        self.control.report(error.during(bound.collective.name()))
    }
}

/// The two sides of a message differ.
#[cold]
pub(super) fn unlike(peer: Rank, detail: String) -> Error {
    let advice = "give the send and the matching receive the same count and dtype, in the same order";
    Error::new(Fault::Remote { rank: peer }, detail, advice).with_peer(peer)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use ccl_plan::ReduceOp;

    use super::*;
    use crate::exec::device::Addresses;
    use crate::exec::step::LENT;
    use crate::{Communicator, Config, Request, Stream, local};

    /// Nobody but the callers drives calls.
    fn config(vars: &[(&'static str, &'static str)]) -> Config {
        let always = [("CCL_TIMEOUT", "3s"), ("CCL_PROGRESS_THREAD", "0")];
        Config::from_vars(always.into_iter().chain(vars.iter().copied())).unwrap()
    }

    /// Enqueues a call, gets it as far as it goes alone, drops the communicator, and uses the memory for something else.
    fn drop_half_way(comm: Communicator, request: Request<'_>, values: &mut [i32]) {
        let stream = Stream::new();
        let address = values.as_mut_ptr();
        // SAFETY: the values are there until the communicator is dropped, and left alone until then.
        unsafe {
            let at = Addresses::new(address.cast_const().cast(), address.cast());
            comm.enqueue(request, at, &stream).unwrap();
        }
        comm.with_engine(|engine| engine.poll()).unwrap();
        assert_eq!(comm.with_engine(|engine| Ok(engine.outstanding())).unwrap(), 1);
        drop(comm);
        values.fill(AFTERWARDS);
    }

    #[test]
    fn peers_write_to_no_buffer_of_a_communicator_that_was_dropped() {
        let dropped = Barrier::new(2);
        let config = config(&[("CCL_MAPPED_BYTES", "1"), ("CCL_ALGO", "allreduce:two_shot")]);
        let outcomes = local::try_run_with(&config, 2, |comm| {
            comm.barrier()?;
            let mut values = vec![1; COUNT];
            if comm.rank() == Rank(0) {
                let request =
                    Request { count: COUNT, ..Request::all_reduce::<i32>(&[], &mut [], ReduceOp::Sum) };
                drop_half_way(comm, request, &mut values);
                dropped.wait();
                dropped.wait();
                assert!(values.iter().all(|value| *value == AFTERWARDS), "a peer wrote to them");
                return Ok(());
            }
            dropped.wait();
            let reduced = comm.all_reduce_in_place(&mut values, ReduceOp::Sum);
            dropped.wait();
            reduced
        });
        let error = outcomes.unwrap().remove(1).unwrap_err();
        assert!(error.cause().contains("gave up while its buffers were used"), "{error}");
    }

    #[test]
    fn nobody_takes_what_was_lent_by_a_communicator_that_was_dropped_for_data() {
        let dropped = Barrier::new(2);
        let config = config(&[("CCL_DIRECT_BYTES", "1"), ("CCL_MAPPED_BYTES", "0")]);
        let outcomes = local::try_run_with(&config, 3, |comm| {
            comm.barrier()?;
            let mut values = vec![1; COUNT];
            if comm.rank() == Rank(2) {
                return comm.barrier();
            }
            if comm.rank() == Rank(0) {
                let request = Request { count: COUNT, ..Request::send::<i32>(&[], Rank(1)) };
                let lent = LENT.get();
                drop_half_way(comm, request, &mut values);
                assert!(LENT.get() > lent);
                dropped.wait();
                return Ok(());
            }
            dropped.wait();
            comm.recv(&mut values, Rank(0))
        });
        let outcomes = outcomes.unwrap();
        let [reader, other] = [1, 2].map(|rank: usize| outcomes[rank].as_ref().unwrap_err());
        assert!(reader.cause().contains("gave up while its buffer was read"), "{reader}");
        // It is not the reader that is to blame.
        assert_eq!(
            (reader.peer(), other.fault()),
            (Some(Rank(0)), &Fault::Remote { rank: Rank(0) }),
            "{other}"
        );
    }

    const COUNT: usize = 10_000;
    /// What the memory holds once it serves something else.
    const AFTERWARDS: i32 = 7;
}
