//! Groups: calls that are launched together.

use smallvec::SmallVec;

use super::Communicator;
use crate::error::Result;
use crate::exec::host::Poll;
use crate::request::Request;

/// Calls collected by [`group`], possibly on several communicators of this thread.
pub struct Group<'a> {
    calls: SmallVec<[(&'a Communicator, Request<'a>); 4]>,
}

impl<'a> Group<'a> {
    /// Adds a call. Nothing runs before the group's closure has returned.
    pub fn add(&mut self, communicator: &'a Communicator, request: Request<'a>) {
        self.calls.push((communicator, request));
    }
}

/// Launches the calls that `collect` adds together and waits for all of them.
///
/// Messages of a group progress side by side, so ranks may exchange in any order; collectives of
/// one communicator run in the order they were added; calls on several communicators of one thread
/// progress side by side, which is how one thread can hold several ranks.
///
/// Blocks until every call is complete.
///
/// # Errors
///
/// `collect`'s error (then nothing is launched), or the first error of any call.
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
    let mut group = Group { calls: SmallVec::new() };
    collect(&mut group)?;
    let mut communicators: SmallVec<[&Communicator; 4]> = SmallVec::new();
    let mut first_error = None;
    for (communicator, request) in &mut group.calls {
        if let Err(error) = communicator.with_engine(|engine| engine.begin_one_of_many(request)) {
            first_error = Some(error);
            // It may have no other call, and then is not driven.
            let landed = communicator.with_engine(|engine| {
                engine.land();
                Ok(())
            });
            debug_assert!(landed.is_ok(), "it was open a moment ago");
            break;
        }
        if !communicators.iter().any(|known| std::ptr::eq(*known, *communicator)) {
            communicators.push(communicator);
        }
    }
    // The borrows in `calls` must outlive whatever was submitted, also after an error.
    let driven = drive(&communicators);
    drop(group);
    first_error.map_or(driven, Err)
}

/// Drives several communicators until each is done or has failed; the first error.
fn drive(communicators: &[&Communicator]) -> Result<()> {
    if let [only] = communicators {
        return only.with_engine(|engine| engine.finish_group());
    }
    let patience = |c: &&Communicator| c.with_engine(|engine| Some(engine.patience()));
    let mut open: Vec<_> = communicators.iter().filter_map(|c| Some((*c, patience(c)?))).collect();
    let mut outcome = Ok(());
    while !open.is_empty() {
        open.retain_mut(|(communicator, patience)| {
            let polled = communicator.with_engine(|engine| {
                let polled = engine.poll().and_then(|poll| match poll {
                    Poll::Done => Ok(false),
                    Poll::Progress => {
                        patience.renew();
                        Ok(true)
                    }
                    Poll::Stalled => engine.stalled(patience).map(|()| true),
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
    }
    outcome
}
