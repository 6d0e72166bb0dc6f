//! One step of one lane: from slots and buffers to slots and buffers, or not yet.

use std::time::Instant;

use ccl_plan::cursor::Cursor;
use ccl_plan::layout::Layout;
use ccl_plan::{Channel, Collective, Rank};

use super::host::{Company, Reason, RunState, Stop};
use super::message::Copied;
use super::plans::Decision;
use super::reduce::{self, Finish};
use super::tape::{Entry, Handing, Kind, Pieces, Resolve, Sent, Spot};
use crate::discover::processor::is_of_amd;
use crate::error::Error;
use crate::memory::scratch::BOUNCE_BYTES;
use crate::request::Bound;
use crate::transport::{EdgeIndex, Fabric, Filler, Filling, Slot};

/// Everything one lane needs to take steps.
pub(super) struct LaneStep<'a> {
    pub(super) call: Bindings<'a>,
    pub(super) state: &'a mut RunState,
    pub(super) fabric: &'a mut Fabric,
    /// Start of this lane's scratch.
    pub(super) cells: *mut u8,
    /// Where what is read directly is folded from; null if nothing is.
    pub(super) bounce: *mut u8,
    pub(super) lent: &'a mut Vec<(EdgeIndex, Rank)>,
    pub(super) company: Company,
    /// The edge whose slot holds what the last step sent, where others may be told of it.
    pub(super) filled: &'a mut Option<EdgeIndex>,
    pub(super) waiting_for: Option<(Rank, u32)>,
}

/// What a lane that follows its program does next.
#[derive(Default)]
pub(super) struct Upcoming {
    /// The step that has to wait.
    pending: Option<Entry>,
    /// What the one before it has sent.
    last: Option<Sent>,
}

/// A call: what was decided of its kind, and what is its own.
#[derive(Clone, Copy)]
pub(super) struct Bindings<'a> {
    pub(super) bound: &'a Bound,
    pub(super) decision: &'a Decision,
    /// In every slot of the call.
    pub(super) tag: u32,
}

impl LaneStep<'_> {
    /// Takes steps of the tape until the lane must wait or is done; whether it took any.
    pub(super) fn replay(&mut self, lane: usize, at: &mut usize) -> Result<bool, Stop> {
        let Some(tape) = &self.call.decision.tape else {
            return Err(Error::bug("a lane replays a tape that is not there").into());
        };
        let mut moved = false;
        let mut moved_bytes = 0;
        if *at == 0
            && let Some(whole) = tape.whole()
        {
            match self.take_whole(whole)? {
                Copied::Yes => *at = tape.lane(lane).len(),
                Copied::NotYet => return Ok(false),
                Copied::Otherwise => {}
            }
        }
        while let Some(entry) = tape.lane(lane).get(*at) {
            // Peers may wait for what other lanes and operations have to give them.
            if moved_bytes >= TURN_BYTES {
                return Ok(true);
            }
            if !self.take(entry)? {
                return Ok(moved);
            }
            *at += 1;
            moved = true;
            moved_bytes += entry.bytes;
            if entry.kind == Kind::Barrier {
                *self.state = RunState::AtBarrier;
                return Ok(true);
            }
        }
        *self.state = RunState::Done;
        Ok(true)
    }

    /// As [`LaneStep::replay`], asking the program for each step.
    pub(super) fn follow(
        &mut self,
        cursor: &mut Cursor,
        Upcoming { pending, last }: &mut Upcoming,
        channel: Channel,
        layout: &Layout<'_>,
    ) -> Result<bool, Stop> {
        let call = self.call;
        let resolve = Resolve::new(call.bound, layout.n, call.decision.sending, layout.chunk_count, channel);
        let mut moved = false;
        let mut moved_bytes = 0;
        while moved_bytes < TURN_BYTES {
            let entry = match pending {
                Some(entry) => entry,
                None => match cursor.next(&call.decision.program, layout) {
                    Some(action) => {
                        let instruction = cursor.instruction() as u32;
                        pending.insert(resolve.entry(&action, instruction, last, self.fabric)?)
                    }
                    None => {
                        *self.state = RunState::Done;
                        return Ok(true);
                    }
                },
            };
            if !self.take(entry)? {
                return Ok(moved);
            }
            let kind = entry.kind;
            moved_bytes += entry.bytes;
            *pending = None;
            moved = true;
            if kind == Kind::Barrier {
                *self.state = RunState::AtBarrier;
                return Ok(true);
            }
        }
        Ok(moved)
    }

    /// One step, if every edge is ready.
    #[inline(always)]
    pub(super) fn take(&mut self, entry: &Entry) -> Result<bool, Stop> {
        match self.take_copy(entry)? {
            Copied::Yes => return Ok(true),
            Copied::NotYet => return Ok(false),
            Copied::Otherwise => {}
        }
        let mut inputs = [std::ptr::null::<u8>(); 4];
        for (address, spot) in inputs.iter_mut().zip(entry.inputs()) {
            *address = match self.input(entry, *spot)? {
                Found::Here(found) => found,
                Found::Lent(..) => return self.take_borrowed(entry),
                Found::NotYet => return Ok(false),
            };
        }
        let inputs = &inputs[..entry.inputs().len()];
        if entry.handing != Handing::Copied {
            return match entry.handing {
                Handing::Shared => self.take_sharing(entry, inputs),
                Handing::Sent => self.take_sending(entry, inputs),
                _ => self.take_lending(entry, inputs),
            };
        }
        self.take_copying(entry, inputs)
    }

    /// One step that copies what it makes to slots.
    #[inline(always)]
    fn take_copying(&mut self, entry: &Entry, inputs: &[*const u8]) -> Result<bool, Stop> {
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        for (address, spot) in outputs.iter_mut().zip(entry.outputs()) {
            let Some(found) = self.output(entry, *spot)? else { return Ok(false) };
            *address = found;
        }
        if entry.kind == Kind::Move {
            // SAFETY: user addresses come from a request whose lengths were checked against the layout
            // that cut this step and whose borrows outlive the operation; slots hold at least `bytes`
            // (checked against the slot size at launch, and against the slot's length on receive) and
            // are ours until posted or released; scratch cells hold a chunk each. Ranges are equal or
            // disjoint because the program was checked and in-place calls were verified for it.
            // Of a span, user ranges and cells are those pieces, each within its block, chunk or cell.
            unsafe { self.fill(entry, inputs, (entry.outputs(), &outputs[..entry.outputs().len()])) };
        }
        self.hand_over(entry, None)?;
        Ok(true)
    }

    /// One step that fills a slot of one of its peers and tells the others of it.
    #[cold]
    fn take_sharing(&mut self, entry: &Entry, inputs: &[*const u8]) -> Result<bool, Stop> {
        let mut filled = self.filled.filter(|_| entry.repeats);
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        let mut told = [None; 4];
        let (mut spots, mut kept) = ([Spot::Send(0); 4], 0);
        for (spot, told) in entry.outputs().iter().zip(&mut told) {
            let known = filled.filter(|filled| self.fabric.sender(*filled).may_share());
            if let (Spot::To(..), Some(_)) = (spot, known) {
                *told = known;
            }
            let Some(found) = self.output_of(*spot, entry, told.is_none())? else { return Ok(false) };
            if told.is_some() {
                continue;
            }
            if let Spot::To(edge, _) = *spot {
                filled = Some(edge);
            }
            (spots[kept], outputs[kept]) = (*spot, found);
            kept += 1;
        }
        if kept > 0 {
            // SAFETY: as in `take`.
            unsafe { self.fill(entry, inputs, (&spots[..kept], &outputs[..kept])) };
        }
        for (spot, told) in entry.outputs().iter().zip(told) {
            match (*spot, told) {
                (Spot::To(edge, _), None) => {
                    self.fabric.sender(edge).post_shared(entry.bytes, self.call.tag)?;
                }
                (Spot::To(edge, _), Some(of)) => {
                    self.fabric.point(edge, of, entry.bytes, self.call.tag)?;
                    #[cfg(test)]
                    TOLD.set(TOLD.get() + 1);
                }
                _ => {}
            }
        }
        *self.filled = filled;
        self.give_back(entry)?;
        Ok(true)
    }

    /// One step whose results networks take from where this rank has them.
    fn take_sending(&mut self, entry: &Entry, inputs: &[*const u8]) -> Result<bool, Stop> {
        let (mut outputs, mut spots) = ([std::ptr::null_mut::<u8>(); 4], [Spot::Send(0); 4]);
        let mut kept = 0;
        for spot in entry.outputs() {
            let Some(found) = self.output_of(*spot, entry, true)? else { return Ok(false) };
            if !matches!(spot, Spot::To(..)) {
                (outputs[kept], spots[kept]) = (found, *spot);
                kept += 1;
            }
        }
        let outputs = &outputs[..kept];
        if kept > 0 {
            // SAFETY: as in `take`.
            unsafe { self.fill(entry, inputs, (&spots[..kept], outputs)) };
        }
        let data = outputs.first().map_or(inputs[0], |output| output.cast_const());
        for spot in entry.outputs() {
            if let Spot::To(edge, _) = *spot {
                // SAFETY: what the step made, or its only input: in a buffer, a cell, or a slot of another edge.
                unsafe { self.fabric.sender(edge).post_from(data, entry.bytes, self.call.tag)? };
                #[cfg(test)]
                SENT.set(SENT.get() + 1);
            }
        }
        self.give_back(entry)?;
        Ok(true)
    }

    /// One step that lends to its peers what it keeps or what it read.
    #[cold]
    fn take_lending(&mut self, entry: &Entry, inputs: &[*const u8]) -> Result<bool, Stop> {
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        let Some(kept) = self.kept(entry, &mut outputs)? else { return Ok(false) };
        let outputs = &outputs[..kept];
        if entry.finish == Finish::NONE && matches!(entry.inputs(), [Spot::Send(_)]) {
            // Peers may read while this rank makes its own copy.
            self.hand_over(entry, Some(inputs[0]))?;
            // SAFETY: as in `take`.
            unsafe { reduce::copy(inputs[0], outputs, entry.bytes) };
        } else {
            if kept > 0 {
                // SAFETY: as in `take`.
                unsafe { self.fold(entry, inputs, outputs) };
            }
            self.hand_over(entry, outputs.first().map(|output| output.cast_const()).or(Some(inputs[0])))?;
        }
        Ok(true)
    }

    /// One step of which some inputs lie in the memory of other processes.
    #[cold]
    fn take_borrowed(&mut self, entry: &Entry) -> Result<bool, Stop> {
        let mut inputs = [std::ptr::null::<u8>(); 4];
        let mut borrowed: [Option<Borrowed>; 4] = [None; 4];
        for (index, spot) in entry.inputs().iter().enumerate() {
            match self.input(entry, *spot)? {
                Found::Here(found) => inputs[index] = found,
                Found::Lent(lent) => borrowed[index] = Some(lent),
                Found::NotYet => return Ok(false),
            }
        }
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        let Some(kept) = self.kept(entry, &mut outputs)? else { return Ok(false) };
        let (inputs, outputs) = (&inputs[..entry.inputs().len()], &outputs[..kept]);
        // SAFETY: as in `take`; what is being fetched belongs to the operation, which is not complete
        // until it is there, and whose failure withdraws all edges before the caller hears of it.
        if !unsafe { self.fold_borrowed(entry, inputs, outputs, &borrowed)? } {
            return Ok(false);
        }
        self.hand_over(entry, outputs.first().map(|output| output.cast_const()))?;
        Ok(true)
    }

    /// The outputs that data is written to, and how many: all, or those in this process if the others
    /// are lent. `None` while credit is awaited.
    fn kept(&mut self, entry: &Entry, outputs: &mut [*mut u8; 4]) -> Result<Option<usize>, Stop> {
        let mut kept = 0;
        for spot in entry.outputs() {
            let Some(found) = self.output(entry, *spot)? else { return Ok(None) };
            if !(entry.handing == Handing::Lent && matches!(spot, Spot::To(..))) {
                outputs[kept] = found;
                kept += 1;
            }
        }
        Ok(Some(kept))
    }

    /// Folds all pieces, in the way that is best for the slots among the outputs, each given with what it is.
    ///
    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`], of each piece.
    #[inline(always)]
    unsafe fn fill(&mut self, entry: &Entry, inputs: &[*const u8], outputs: (&[Spot], &[*mut u8])) {
        // SAFETY: the caller's contract.
        unsafe {
            if entry.bytes <= NEVER_STREAMED_BYTES || entry.pieces.number != 1 {
                self.fold_all(entry, inputs, outputs.1);
            } else {
                self.fill_slots(entry, inputs, outputs);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`LaneStep::fill`].
    #[inline(never)]
    unsafe fn fill_slots(
        &mut self,
        entry: &Entry,
        inputs: &[*const u8],
        (spots, outputs): (&[Spot], &[*mut u8]),
    ) {
        let filler = match (entry.is_copy(), spots) {
            (true, _) => Filler::Copy,
            (false, [Spot::To(..), ..]) => Filler::Fold,
            _ => Filler::Other,
        };
        let (mut stores, mut timed, mut aside) = ([Store::Cached; 4], None, false);
        for (index, (spot, output)) in spots.iter().zip(outputs).enumerate() {
            stores[index] = match *spot {
                Spot::To(edge, _) => {
                    let filling = self.fabric.sender(edge).filling(filler);
                    aside |= matches!(filling, Filling::Aside | Filling::AsideTimed);
                    timed = match filling {
                        Filling::Timed => Some((edge, index, filler, Instant::now())),
                        Filling::AsideTimed => Some((edge, index, Filler::Aside, Instant::now())),
                        _ => timed,
                    };
                    if filling == Filling::Streaming { Store::Around } else { Store::Cached }
                }
                _ if filler == Filler::Copy && std::ptr::eq(*output, inputs[0]) => Store::Nothing,
                Spot::Recv(_) if self.writes_around() => Store::Around,
                _ => Store::Cached,
            };
        }
        if filler == Filler::Copy
            && is_of_amd()
            && let Some((edge, index, _, since)) = timed.take()
        {
            // Alone: what else is copied is nearer, and would make a slow slot look fast (ADR 0109).
            // SAFETY: the caller's contract.
            unsafe { reduce::copy(inputs[0], &outputs[index..=index], entry.bytes) };
            self.fabric.sender(edge).took(filler, entry.bytes, since);
            stores[index] = Store::Nothing;
        }
        let (ordered, cached, number) = cached_first(outputs, &stores);
        let outputs = &ordered[..number];
        if number == 0 {
            return;
        }
        if aside && cached == number {
            // SAFETY: the caller's contract.
            unsafe { self.call.decision.reduction.fold_aside(inputs, outputs, entry.count, entry.finish) };
        } else if cached == number && entry.bytes <= not_asked_for_bytes(self.call.bound.collective) {
            // SAFETY: the caller's contract.
            unsafe { self.fold(entry, inputs, outputs) };
        } else {
            let taken = (0..).zip(entry.inputs()).fold(0, |taken, (index, spot)| match *spot {
                Spot::From(edge, _) => taken | u8::from(self.fabric.receiver(edge).takes_slot()) << index,
                _ => taken,
            });
            // SAFETY: the caller's contract, for the same outputs.
            unsafe { self.fold_long(entry, (inputs, taken), (outputs, cached)) };
        }
        if let Some((edge, _, filler, since)) = timed {
            self.fabric.sender(edge).took(filler, entry.bytes * outputs.len(), since);
        }
    }

    /// Whether results go around the caches: where all buffers together exceed them, and AMD processors have not just read the lines that
    /// results go to (ADR 0108).
    pub(super) fn writes_around(&self) -> bool {
        let Bound { collective, in_place, .. } = self.call.bound;
        self.call.decision.huge && !(is_of_amd() && *in_place && collective.reduces())
    }

    /// As [`LaneStep::fold`], for long data, around the caches but for so many first outputs; inputs that are `taken` as of
    /// [`reduce::Reduction::fold_long`].
    ///
    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`].
    unsafe fn fold_long(
        &self,
        entry: &Entry,
        (inputs, taken): (&[*const u8], u8),
        (outputs, cached): (&[*mut u8], usize),
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if inputs.len() == 1 && entry.finish == Finish::NONE {
                reduce::copy_long(inputs[0], taken != 0, (outputs, cached), entry.bytes);
            } else {
                let reduction = &self.call.decision.reduction;
                reduction.fold_long((inputs, taken), (outputs, cached), entry.count, entry.finish);
            }
        }
    }

    /// Folds all pieces.
    ///
    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`], of each piece.
    #[inline(always)]
    unsafe fn fold_all(&self, entry: &Entry, inputs: &[*const u8], outputs: &[*mut u8]) {
        // SAFETY: the caller's contract.
        unsafe {
            if entry.pieces.number == 1 {
                self.fold(entry, inputs, outputs);
            } else {
                self.fold_pieces(entry, inputs, outputs);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`LaneStep::fold_all`].
    #[cold]
    unsafe fn fold_pieces(&self, entry: &Entry, inputs: &[*const u8], outputs: &[*mut u8]) {
        let Pieces { number, count, .. } = entry.pieces;
        let piece_bytes = count * (entry.bytes / entry.count);
        let start = |spot: &Spot, piece: usize| entry.pieces.offset(spot, piece, piece_bytes);
        let (mut sources, mut targets) = ([std::ptr::null(); 4], [std::ptr::null_mut(); 4]);
        for piece in 0..number {
            for ((source, input), spot) in sources.iter_mut().zip(inputs).zip(entry.inputs()) {
                *source = input.wrapping_byte_offset(start(spot, piece));
            }
            for ((target, output), spot) in targets.iter_mut().zip(outputs).zip(entry.outputs()) {
                *target = output.wrapping_byte_offset(start(spot, piece));
            }
            let mut part = *entry;
            part.count = count.min(entry.count - piece * count);
            part.bytes = piece_bytes.min(entry.bytes - piece * piece_bytes);
            // SAFETY: the caller's contract for this piece.
            unsafe { self.fold(&part, &sources[..inputs.len()], &targets[..outputs.len()]) };
        }
    }

    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`].
    #[inline(always)]
    unsafe fn fold(&self, entry: &Entry, inputs: &[*const u8], outputs: &[*mut u8]) {
        // SAFETY: the caller's contract.
        unsafe {
            if inputs.len() == 1 && entry.finish == Finish::NONE {
                reduce::copy(inputs[0], outputs, entry.bytes);
            } else {
                self.call.decision.reduction.fold(inputs, outputs, entry.count, entry.finish);
            }
        }
    }

    /// What was made goes on to the peers, `kept` being where it stays if it is lent; what was used is
    /// given back.
    #[inline(always)]
    fn hand_over(&mut self, entry: &Entry, kept: Option<*const u8>) -> Result<(), Stop> {
        for spot in entry.outputs() {
            if let Spot::To(edge, peer) = *spot {
                match kept.filter(|_| entry.handing == Handing::Lent) {
                    None => self.fabric.sender(edge).post(entry.bytes, self.call.tag)?,
                    Some(address) => {
                        let helps = self.helps();
                        self.fabric.sender(edge).lend((address, entry.bytes), self.call.tag, helps)?;
                        #[cfg(test)]
                        LENT.set(LENT.get() + 1);
                        if !self.lent.iter().any(|(known, _)| *known == edge) {
                            self.lent.push((edge, peer));
                        }
                    }
                }
            }
        }
        self.give_back(entry)
    }

    /// Whether this rank is about to have nothing to do but to help with what it lends: after a message that is alone, and after what a root
    /// sends.
    fn helps(&self) -> bool {
        let collective = self.call.bound.collective;
        may_help(collective, self.company, self.fabric) && (collective.is_message() || collective.rooted())
    }

    /// What was used is given back.
    #[inline(always)]
    fn give_back(&mut self, entry: &Entry) -> Result<(), Stop> {
        for spot in entry.inputs() {
            if let Spot::From(edge, peer) = *spot {
                self.fabric.receiver(edge).release().map_err(|error| of_peer(error, peer))?;
            }
        }
        Ok(())
    }

    /// Inputs in other processes' memory are read straight to where they belong if nothing is folded,
    /// else piece by piece into buffers in the cache. Whether all is done; `false` while a network
    /// brings them.
    ///
    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`], of the inputs that are not borrowed.
    unsafe fn fold_borrowed(
        &mut self,
        entry: &Entry,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        borrowed: &[Option<Borrowed>; 4],
    ) -> Result<bool, Stop> {
        if let ([Some(Borrowed { edge, peer, slot })], true) =
            (&borrowed[..inputs.len()], entry.finish == Finish::NONE)
        {
            // SAFETY: the first output has room for the step, and the others do as well and lie apart.
            unsafe {
                let fetched = self.fabric.receiver(*edge).fetch(slot, outputs[0]);
                if !fetched.map_err(|error| of_peer(error, *peer))? {
                    self.waiting_for = Some((*peer, entry.instruction));
                    return Ok(false);
                }
                reduce::copy(outputs[0], outputs, entry.bytes);
            }
            return Ok(true);
        }
        let size = entry.bytes / entry.count;
        let (mut pieces, mut targets) = ([std::ptr::null(); 4], [std::ptr::null_mut(); 4]);
        for start in (0..entry.bytes).step_by(BOUNCE_BYTES) {
            let bytes = BOUNCE_BYTES.min(entry.bytes - start);
            for (index, input) in inputs.iter().enumerate() {
                pieces[index] = input.wrapping_add(start);
                if let Some(Borrowed { edge, peer, slot }) = &borrowed[index] {
                    let bounce = self.bounce.wrapping_add(index * BOUNCE_BYTES);
                    // SAFETY: there is a bounce buffer for each input, and this piece fits it.
                    let fetched =
                        unsafe { self.fabric.receiver(*edge).fetch_piece(slot, start, bounce, bytes) };
                    fetched.map_err(|error| of_peer(error, *peer))?;
                    pieces[index] = bounce.cast_const();
                }
            }
            for (target, output) in targets.iter_mut().zip(outputs) {
                *target = output.wrapping_add(start);
            }
            let (pieces, targets) = (&pieces[..inputs.len()], &targets[..outputs.len()]);
            // SAFETY: pieces lie within the caller's ranges or in bounce buffers.
            unsafe { self.call.decision.reduction.fold(pieces, targets, bytes / size, entry.finish) };
        }
        Ok(true)
    }

    /// Where to read from.
    #[inline(always)]
    fn input(&mut self, entry: &Entry, spot: Spot) -> Result<Found, Stop> {
        Ok(Found::Here(match spot {
            Spot::Send(offset) => self.call.bound.send.wrapping_add(offset),
            Spot::Recv(offset) => self.call.bound.recv.wrapping_add(offset).cast_const(),
            Spot::Scratch(offset) => self.cells.wrapping_add(offset).cast_const(),
            Spot::To(..) => return Err(Error::bug("a send edge as an input").into()),
            Spot::From(edge, peer) => {
                let peeked = self.fabric.receiver(edge).peek().map_err(|error| of_peer(error, peer))?;
                let Some(slot) = peeked else {
                    self.waiting_for = Some((peer, entry.instruction));
                    return Ok(Found::NotYet);
                };
                if slot.tag != self.call.tag || slot.bytes != entry.bytes {
                    return Err(mismatch(peer, self.call.tag, entry.bytes, &slot));
                }
                if slot.lent {
                    return Ok(Found::Lent(Borrowed { edge, peer, slot }));
                }
                slot.data.as_ptr().cast_const()
            }
        }))
    }

    /// Where to write to, or `None` while credit is awaited.
    #[inline(always)]
    fn output(&mut self, entry: &Entry, spot: Spot) -> Result<Option<*mut u8>, Stop> {
        self.output_of(spot, entry, entry.handing != Handing::Lent)
    }

    /// The same; whether bytes are to be written there, if it is an edge.
    #[inline(always)]
    fn output_of(&mut self, spot: Spot, entry: &Entry, written: bool) -> Result<Option<*mut u8>, Stop> {
        Ok(Some(match spot {
            Spot::Recv(offset) => self.call.bound.recv.wrapping_add(offset),
            Spot::Scratch(offset) => self.cells.wrapping_add(offset),
            Spot::Send(_) | Spot::From(..) => return Err(Error::bug("an input as an output").into()),
            Spot::To(edge, peer) => {
                match self.fabric.sender(edge).acquire(if written { entry.bytes } else { 0 })? {
                    Some(address) => address.as_ptr(),
                    None => {
                        self.waiting_for = Some((peer, entry.instruction));
                        return Ok(None);
                    }
                }
            }
        }))
    }
}

/// Where an input is.
enum Found {
    /// In this process.
    Here(*const u8),
    /// In another, or at an address that only the kernel may read.
    Lent(Borrowed),
    /// A peer's slot is awaited.
    NotYet,
}

/// A message that lies in a peer's memory.
#[derive(Clone, Copy)]
struct Borrowed {
    edge: EdgeIndex,
    peer: Rank,
    slot: Slot,
}

/// What a peer sent cannot be had: it is the peer that the others hear of, and not who noticed.
#[cold]
pub(super) fn of_peer(error: Error, peer: Rank) -> Stop {
    error.with_peer(peer).into()
}

#[cold]
pub(super) fn mismatch(peer: Rank, tag: u32, bytes: usize, slot: &Slot) -> Stop {
    let detail = if slot.tag == tag {
        format!("expected {bytes} bytes from rank {peer}, found {}", slot.bytes)
    } else {
        format!("expected a message of this call from rank {peer}, found one of another call")
    };
    Reason::Mismatch { peer, detail }.into()
}

#[cfg(test)]
thread_local! {
    /// Messages that this thread has lent,
    pub(crate) static LENT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// and those that told of a slot that another message filled.
    pub(crate) static TOLD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// and those that networks took from where this rank had them.
    pub(crate) static SENT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How a step writes one of its outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Cached,
    /// Around the caches.
    Around,
    /// It is there already.
    Nothing,
}

/// The outputs that are written in another order, those that go through the caches before the others; how many these are, and all.
fn cached_first(outputs: &[*mut u8], stores: &[Store; 4]) -> ([*mut u8; 4], usize, usize) {
    let mut ordered = [std::ptr::null_mut(); 4];
    let cached = stores[..outputs.len()].iter().filter(|store| **store == Store::Cached).count();
    let (mut next, mut next_around) = (0, cached);
    for (output, store) in outputs.iter().zip(stores) {
        let place = match store {
            Store::Cached => &mut next,
            Store::Around => &mut next_around,
            Store::Nothing => continue,
        };
        ordered[*place] = *output;
        *place += 1;
    }
    (ordered, cached, next_around)
}

/// What is shorter goes in or beside a line.
pub(super) const NEVER_STREAMED_BYTES: usize = 4096;

/// Up to how many bytes steps are copied and folded with nothing asked for ahead: any on AMD processors, where copies that ask take longer.
/// On others those take longer if they are short, and longer ones gain the more the fewer ranks fill slots that others empty (ADR 0116).
#[inline(always)]
pub(super) fn not_asked_for_bytes(collective: Collective) -> usize {
    match collective.rooted() {
        _ if is_of_amd() => usize::MAX,
        true => NOT_ASKED_FOR_ROOTED_BYTES,
        false => NOT_ASKED_FOR_BYTES,
    }
}

const NOT_ASKED_FOR_ROOTED_BYTES: usize = 16 << 10;
const NOT_ASKED_FOR_BYTES: usize = 32 << 10;

/// Whether a rank with nothing else to do in a call helps with what it lends. With one that shares its core it would only trade places, but for
/// a message that nothing else is under way beside (ADR 0117).
pub(super) fn may_help(collective: Collective, company: Company, fabric: &Fabric) -> bool {
    match fabric.is_roomy_here() {
        true => company != Company::Now,
        false => collective.is_message() && company == Company::None,
    }
}

/// A lane takes no more steps in one go once it has moved so many bytes. A rank that reads 64 pieces of a long message
/// one after the other lends nothing meanwhile: two ranks that exchange 16 MiB then take turns, and 1.5 times as long.
pub(super) const TURN_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_are_there_already_are_left_out_and_those_around_the_caches_come_last() {
        let mut bytes = [0u8; 4];
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| std::ptr::from_mut(&mut bytes[at]));
        let ordered = |outputs: &[*mut u8], stores| {
            let (ordered, cached, number) = cached_first(outputs, &stores);
            (ordered[..cached].to_vec(), ordered[cached..number].to_vec())
        };
        let (cached, around, nothing) = (Store::Cached, Store::Around, Store::Nothing);
        assert_eq!(ordered(&[a, b, c, d], [around, cached, nothing, cached]), (vec![b, d], vec![a]));
        assert_eq!(ordered(&[a, b], [nothing, cached, cached, cached]), (vec![b], vec![]));
        assert_eq!(ordered(&[a, b], [around; 4]), (vec![], vec![a, b]));
        assert_eq!(ordered(&[a], [nothing; 4]), (vec![], vec![]));
    }
}
