//! Groups: calls that are launched together.

use smallvec::SmallVec;

use super::{Communicator, closed};
use crate::error::Result;
use crate::exec::device::Addresses;
use crate::exec::host::Poll;
use crate::request::Request;
use crate::stream::{Stream, Turn};

/// Calls collected by [`group`], possibly on several communicators of this thread.
pub struct Group<'a> {
    calls: SmallVec<[(&'a Communicator, Request<'a>); 4]>,
    /// Where the data of some calls is, by their numbers, and the streams they go on.
    placed: Vec<(usize, Addresses<'a>, &'a Stream)>,
}

impl<'a> Group<'a> {
    /// Adds a call. Nothing runs before the group's closure has returned.
    pub fn add(&mut self, communicator: &'a Communicator, request: Request<'a>) {
        self.calls.push((communicator, request));
    }

    /// Adds a call on memory given by address.
    pub(super) fn add_at(
        &mut self,
        communicator: &'a Communicator,
        request: Request<'a>,
        (at, stream): (Addresses<'a>, &'a Stream),
    ) {
        self.placed.push((self.calls.len(), at, stream));
        self.add(communicator, request);
    }

    /// Refuses calls that are not in order before others are launched, for which other ranks would be waited for. What
    /// is launched first need not be looked at here.
    fn check(&mut self) -> Result<()> {
        let (first, hosted) = (self.calls.first().map(|(first, _)| *first), self.placed.is_empty());
        for index in 1..self.calls.len() {
            let (communicator, request) = &self.calls[index];
            let same = hosted && first.is_some_and(|first| std::ptr::eq(first, *communicator));
            if same && request.is_message_in_order(communicator.size()) {
                continue;
            }
            if let Err(error) = self.check_call(index) {
                return self.check_call(0).and(Err(error));
            }
        }
        Ok(())
    }

    fn check_call(&mut self, index: usize) -> Result<()> {
        let (communicator, request) = &mut self.calls[index];
        match self.placed.binary_search_by_key(&index, |(place, ..)| *place) {
            Err(_) => communicator.with_engine(|engine| engine.check_ahead(request)),
            Ok(found) => {
                let ((_, at, stream), shared) = (self.placed[found], communicator.share()?);
                let checked =
                    shared.with(|engine| engine.check_at_ahead(request, at, Turn::new(stream, &shared)));
                checked.unwrap_or_else(|| Err(closed()))
            }
        }
    }
}

/// Launches the calls that `collect` adds together and waits for all of them.
///
/// Messages of a group progress side by side, so ranks may exchange in any order; collectives of
/// one communicator run in the order they were added; calls on several communicators of one thread
/// progress side by side, which is how one thread can hold several ranks.
///
/// Blocks until every call is complete, but for those added by [`Group::enqueue`], which their streams wait for.
///
/// # Errors
///
/// `collect`'s error, or a usage error of any call (then nothing is launched); the first error of any call.
///
/// ```
/// # ccl::local::run(2, |comm| {
/// let (me, peer) = (comm.rank(), ccl::Rank(1 - comm.rank().0));
/// let (mine, mut theirs) = ([me.0; 3], [9; 3]);
/// ccl::group(|group| {
///     group.add(&comm, ccl::Request::send(&mine, peer));
///     group.add(&comm, ccl::Request::recv(&mut theirs, peer));
///     Ok(())
/// })?;
/// assert_eq!(theirs, [peer.0; 3]);
/// # Ok(()) }).unwrap();
/// ```
pub fn group<'a>(collect: impl FnOnce(&mut Group<'a>) -> Result<()>) -> Result<()> {
    let mut group = Group { calls: SmallVec::new(), placed: Vec::new() };
    collect(&mut group)?;
    group.check()?;
    if !group.placed.is_empty() {
        return launch_placed(group);
    }
    let mut communicators: SmallVec<[&Communicator; 4]> = SmallVec::new();
    let mut first_error = None;
    let mut left = group.calls.len();
    for (communicator, request) in &mut group.calls {
        if !communicators.iter().any(|known| std::ptr::eq(*known, *communicator)) {
            communicators.push(communicator);
        }
        left -= 1;
        let alone = left == 0 && communicators.len() == 1;
        if let Err(error) = communicator.with_engine(|engine| engine.begin_one_of_many(request, alone)) {
            first_error = Some(error);
            break;
        }
    }
    // The borrows in `calls` must outlive whatever was submitted, also after an error.
    let driven = drive(&communicators);
    drop(group);
    first_error.map_or(driven, Err)
}

/// Makes all calls ready, launches those that go on streams, and waits for the others. The first error of any.
#[cold]
fn launch_placed(mut group: Group<'_>) -> Result<()> {
    let mut outcome = Ok(());
    let mut placed: SmallVec<[&Communicator; 4]> = SmallVec::new();
    let mut waited_for: SmallVec<[&Communicator; 4]> = SmallVec::new();
    let mut places = group.placed.iter().peekable();
    for (index, (communicator, request)) in group.calls.iter_mut().enumerate() {
        let place = places.next_if(|(place, ..)| *place == index);
        let (begun, of_its_kind) = match place {
            Some((_, at, stream)) => (communicator.start_at(request, *at, (stream, true)), &mut placed),
            None => (communicator.with_engine(|e| e.begin_one_of_many(request, false)), &mut waited_for),
        };
        if !of_its_kind.iter().any(|known| std::ptr::eq(*known, *communicator)) {
            of_its_kind.push(communicator);
        }
        if begun.is_err() {
            outcome = begun;
            break;
        }
    }
    if placed.len() > 1 {
        // On one stream kernels of several communicators follow each other: in the same order on all ranks.
        placed.sort_by_cached_key(|communicator| {
            communicator.with_engine(|engine| engine.number_of_all()).ok()
        });
    }
    for communicator in &placed {
        // The others are launched, too: their ranks hear of the failure and end their kernels.
        let launched = communicator.with_engine(|engine| engine.launch_queued());
        outcome = outcome.and(launched);
    }
    if !waited_for.is_empty() {
        outcome = outcome.and(drive(&waited_for));
    }
    outcome
}

/// Drives several communicators until each is done or has failed; the first error.
fn drive(communicators: &[&Communicator]) -> Result<()> {
    if let [only] = communicators {
        return only.with_engine(|engine| engine.finish_group());
    }
    let mut outcome = Ok(());
    for communicator in communicators {
        outcome = outcome.and(communicator.with_engine(|engine| engine.launch_queued()));
    }
    let patience = |c: &&Communicator| c.with_engine(|engine| Some(engine.patience()));
    let mut open: Vec<_> = communicators.iter().filter_map(|c| Some((*c, patience(c)?))).collect();
    let mut turn = 0;
    while !open.is_empty() {
        let mut moved = false;
        open.retain_mut(|(communicator, patience)| {
            let polled = communicator.with_engine(|engine| {
                let polled = engine.poll().and_then(|poll| match poll {
                    Poll::Done => Ok(false),
                    Poll::Progress => {
                        patience.renew();
                        moved = true;
                        Ok(true)
                    }
                    Poll::Stalled => engine.look_up(patience).map(|()| true),
                });
                if !matches!(polled, Ok(true)) {
                    engine.land();
                }
                polled
            });
            polled.unwrap_or_else(|error| {
                if outcome.is_ok() {
                    outcome = Err(error);
                }
                false
            })
        });
        if moved {
            // Those that stall would keep the others waiting with pauses as long as they have come to.
            open.iter_mut().for_each(|(_, patience)| patience.refresh());
        } else if !open.is_empty() {
            // One pause for all: whose bell may end it changes from round to round.
            turn = (turn + 1) % open.len();
            let (communicator, patience) = &mut open[turn];
            // Of a communicator that is gone the next round hears.
            let _ = communicator.with_engine(|engine| {
                patience.wait(engine.bell());
                Ok(())
            });
        }
    }
    outcome
}
