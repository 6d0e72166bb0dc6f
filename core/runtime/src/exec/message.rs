//! The step that messages consist of: a copy from a buffer to a slot, or from a slot to a buffer.
//!
//! Whoever reads a long message waits for its pieces one after the other, and what comes between two copies is time that both ranks wait.
//! So such a step does what [`super::step`] does with it, with no more around the copy than that needs (ADR 0110).

use std::time::Instant;

use ccl_plan::Rank;

use super::host::{Company, Stop};
use super::reduce::{self, Finish};
use super::step::{LaneStep, NEVER_STREAMED_BYTES, mismatch, not_asked_for_bytes, of_peer};
use super::tape::{Entry, Form, Spot};
use crate::transport::{EdgeIndex, Emptying, Filler, Filling};

/// What came of a step that may be such a copy.
pub(super) enum Copied {
    Yes,
    /// The peer has not done its part.
    NotYet,
    /// It is another step, or something else is in the slot.
    Otherwise,
}

impl LaneStep<'_> {
    /// Takes a step that copies something long between a buffer and one slot, if the edge is ready.
    #[inline(always)]
    pub(super) fn take_copy(&mut self, entry: &Entry) -> Result<Copied, Stop> {
        let long = entry.bytes > NEVER_STREAMED_BYTES
            && entry.bytes <= not_asked_for_bytes(self.call.bound.collective);
        if entry.form != Form::Copy || entry.finish != Finish::NONE || !long {
            return Ok(Copied::Otherwise);
        }
        match (entry.first_inputs(), entry.first_outputs()) {
            ([Spot::Send(offset)], [Spot::To(edge, peer)]) => {
                self.fill_slot(entry, self.call.bound.send.wrapping_add(*offset), (*edge, *peer))
            }
            ([Spot::Recv(offset)], [Spot::To(edge, peer)]) => {
                let from = self.call.bound.recv.wrapping_add(*offset).cast_const();
                self.fill_slot(entry, from, (*edge, *peer))
            }
            ([Spot::From(edge, peer)], [Spot::Recv(offset)]) if !self.writes_around() => {
                self.empty_slot(entry, (*edge, *peer), self.call.bound.recv.wrapping_add(*offset))
            }
            _ => Ok(Copied::Otherwise),
        }
    }

    /// Takes a message as one step, `whole`, if it goes so, or came so: where a rank has other calls under way, nobody waits for a first piece
    /// while it copies the next, and pieces only cost what is around a copy (ADR 0114).
    pub(super) fn take_whole(&mut self, whole: &Entry) -> Result<Copied, Stop> {
        let goes_whole = match (whole.first_inputs(), whole.first_outputs()) {
            (_, [Spot::To(..)]) => self.company != Company::None,
            ([Spot::From(edge, peer)], _) => {
                match self.fabric.receiver(*edge).peek().map_err(|error| of_peer(error, *peer))? {
                    Some(slot) => slot.bytes == whole.bytes,
                    None => {
                        self.waiting_for = Some((*peer, whole.instruction));
                        return Ok(Copied::NotYet);
                    }
                }
            }
            _ => false,
        };
        Ok(match goes_whole {
            false => Copied::Otherwise,
            true if self.take(whole)? => Copied::Yes,
            true => Copied::NotYet,
        })
    }

    #[inline(always)]
    fn fill_slot(
        &mut self,
        entry: &Entry,
        from: *const u8,
        (edge, peer): (EdgeIndex, Rank),
    ) -> Result<Copied, Stop> {
        let sender = self.fabric.sender(edge);
        let Some(slot) = sender.acquire(entry.bytes)? else {
            self.waiting_for = Some((peer, entry.instruction));
            return Ok(Copied::NotYet);
        };
        let to = [slot.as_ptr()];
        let filling = sender.filling(Filler::Copy);
        let since = (filling == Filling::Timed).then(Instant::now);
        // SAFETY: user addresses come from a request whose lengths were checked against the layout that cut this step and whose borrows
        // outlive the operation; slots hold at least `bytes` and are ours until posted.
        unsafe {
            match filling {
                Filling::Streaming => reduce::copy_long(from, false, (&to, 0), entry.bytes),
                _ => reduce::copy(from, &to, entry.bytes),
            }
        }
        if let Some(since) = since {
            sender.took(Filler::Copy, entry.bytes, since);
        }
        sender.post(entry.bytes, self.call.tag)?;
        #[cfg(test)]
        COPIED.set(COPIED.get() + 1);
        Ok(Copied::Yes)
    }

    #[inline(always)]
    fn empty_slot(
        &mut self,
        entry: &Entry,
        (edge, peer): (EdgeIndex, Rank),
        to: *mut u8,
    ) -> Result<Copied, Stop> {
        let receiver = self.fabric.receiver(edge);
        let Some(slot) = receiver.peek().map_err(|error| of_peer(error, peer))? else {
            self.waiting_for = Some((peer, entry.instruction));
            return Ok(Copied::NotYet);
        };
        if slot.tag != self.call.tag || slot.bytes != entry.bytes {
            return Err(mismatch(peer, self.call.tag, entry.bytes, &slot));
        }
        if slot.lent {
            return Ok(Copied::Otherwise);
        }
        let (from, emptying) = (slot.data.as_ptr(), receiver.emptying(entry.bytes));
        let since = (emptying == Emptying::Timed).then(Instant::now);
        // SAFETY: as in `fill_slot`; slots hold what they say and are ours until released.
        unsafe {
            match emptying {
                Emptying::Strings => reduce::copy_in_strings(from, to, entry.bytes),
                _ => reduce::copy(from, &[to], entry.bytes),
            }
        }
        if let Some(since) = since {
            receiver.took(entry.bytes, since);
        }
        receiver.release().map_err(|error| of_peer(error, peer))?;
        #[cfg(test)]
        COPIED.set(COPIED.get() + 1);
        Ok(Copied::Yes)
    }
}

#[cfg(test)]
thread_local! {
    /// Steps that this thread has taken this way.
    static COPIED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::discover::processor::{is_of_amd, on_each};
    use crate::error::Result;
    use crate::{Communicator, Config, Request, local};

    /// How often each of two ranks copied this way in a call, on a processor of AMD's and on another one. All its results are right.
    fn copied(
        extra: (&str, &str),
        call: impl Fn(&Communicator) -> Result<bool> + Send + Sync,
    ) -> [(u32, u32); 2] {
        let vars =
            [("CCL_DIRECT_BYTES", "0"), ("CCL_MAPPED_BYTES", "0"), ("CCL_PROGRESS_THREAD", "0"), extra];
        let config = Config::from_vars(vars).unwrap();
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let copied = RefCell::new(Vec::new());
            on_each(|| {
                let before = COPIED.get();
                assert!(call(&comm).unwrap(), "rank {}", comm.rank());
                copied.borrow_mut().push(COPIED.get() - before);
            });
            let copied = copied.into_inner();
            Ok((copied[0], copied[1]))
        });
        let copied: Vec<_> = outcomes.unwrap().into_iter().map(|copied| copied.unwrap()).collect();
        copied.try_into().unwrap()
    }

    fn message(comm: &Communicator, bytes: usize) -> Result<bool> {
        let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        if comm.rank() == Rank(0) {
            comm.send(&sent, Rank(1))?;
            return Ok(true);
        }
        let mut received = vec![0u8; bytes];
        comm.recv(&mut received, Rank(0))?;
        Ok(received == sent)
    }

    #[test]
    fn long_messages_in_memory_are_copied_piece_by_piece_and_short_ones_are_not() {
        let cut = ("CCL_CHUNK_BYTES", "65536");
        let (short, most) = (NEVER_STREAMED_BYTES, 32 << 10);
        for (bytes, of_amd, other) in [
            (short, 0, 0),
            (short + 1, 1, 1),
            (most, 1, 1),
            (most + 1, 1, 0),
            (70_000, 2, 1),
            (1 << 20, 16, 0),
        ] {
            assert_eq!(copied(cut, |comm| message(comm, bytes)), [(of_amd, other); 2], "{bytes}");
        }
    }

    #[test]
    fn blocks_of_collectives_are_copied_alike() {
        let bytes = 32 << 10;
        let gathered = copied(("CCL_ALGO", "all_gather:ring"), |comm| {
            let own = vec![comm.rank().0 as u8 + 1; bytes];
            let mut all = vec![0u8; 2 * bytes];
            comm.all_gather(&own, &mut all)?;
            Ok(all[..bytes].iter().all(|byte| *byte == 1) && all[bytes..].iter().all(|byte| *byte == 2))
        });
        assert!(gathered.iter().all(|(of_amd, other)| *of_amd > 0 && *other > 0), "{gathered:?}");
    }

    /// Rank 0 exchanges messages with rank 1 in a group; rank 1 does so, too, or answers.
    fn exchange(comm: &Communicator, bytes: usize, answers: bool) -> Result<bool> {
        let peer = Rank(1 - comm.rank().0);
        let of = |rank: Rank| (0..bytes).map(|at| (at * (3 + rank.0 as usize)) as u8).collect::<Vec<u8>>();
        let (sent, mut received) = (of(comm.rank()), vec![0u8; bytes]);
        if answers && comm.rank() == Rank(1) {
            comm.recv(&mut received, peer)?;
            comm.send(&sent, peer)?;
        } else {
            crate::group(|group| {
                group.add(comm, Request::send(&sent, peer));
                group.add(comm, Request::recv(&mut received, peer));
                Ok(())
            })?;
        }
        Ok(received == of(peer))
    }

    #[test]
    fn short_messages_of_a_group_go_whole_and_lone_ones_in_pieces() {
        let extra = ("CCL_SHM_DISABLE", "0");
        // How messages are cut is decided once for each length.
        let shorter = |bytes| if is_of_amd() { bytes } else { bytes - 1 };
        for (bytes, copies, of_answer) in [(64 << 10, 1, 3), (40_001, 1, 2), (24 << 10, 1, 1), (70_000, 2, 2)]
        {
            let in_group = copied(extra, |comm| exchange(comm, shorter(bytes), false));
            assert_eq!(in_group.map(|(of_amd, _)| of_amd), [2 * copies; 2], "{bytes}");
            let answered = copied(extra, |comm| exchange(comm, shorter(bytes), true));
            assert_eq!(answered.map(|(of_amd, _)| of_amd), [copies + of_answer; 2], "{bytes}");
        }
    }

    #[test]
    fn a_message_of_another_length_is_refused() {
        let config = Config::from_vars([("CCL_PROGRESS_THREAD", "0")]).unwrap();
        let outcomes = local::try_run_with(&config, 2, |comm| match comm.rank() {
            Rank(0) => comm.send(&[0u8; 8000], Rank(1)),
            _ => comm.recv(&mut [0u8; 8192], Rank(0)),
        });
        let refused = outcomes.unwrap()[1].as_ref().unwrap_err().to_string();
        assert!(refused.contains("peer 0") && refused.contains("one of another call"), "{refused}");
    }
}
