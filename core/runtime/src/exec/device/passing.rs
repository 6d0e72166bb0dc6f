//! Descriptors of device memory on their way to ranks of other processes, beside a token that the receiver has asked for.

use std::os::fd::{BorrowedFd, OwnedFd};

use ccl_plan::Rank;

use crate::error::{Error, Result};
use crate::memory::{Delivery, Mailbox, MailboxName};

/// What comes with descriptors, so that nobody else's are taken.
pub(super) type Token = [u8; TOKEN_BYTES];

/// A new token.
///
/// # Errors
///
/// The system's.
pub(super) fn token() -> Result<Token> {
    let mut token = [0; TOKEN_BYTES];
    rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::system("draw random bytes", e, "allow the getrandom system call"))?;
    Ok(token)
}

/// Sends descriptors to a rank; once this returns they are there.
///
/// # Errors
///
/// Why they are not.
pub(super) fn post(
    from: Option<&Mailbox>,
    (rank, to): (Rank, Option<MailboxName>),
    note: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), String> {
    let (Some(mailbox), Some(name)) = (from, to) else {
        return Err(format!("no Unix socket leads to rank {rank}"));
    };
    match mailbox.post(name, note, descriptors) {
        Ok(Delivery::Sent) => Ok(()),
        Ok(delivery) => Err(format!("the Unix socket of rank {rank}: {delivery:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The descriptors that were sent here with this note, if they are here.
///
/// # Errors
///
/// The socket's.
pub(super) fn take(mailbox: Option<&Mailbox>, note: &[u8]) -> Result<Option<Vec<OwnedFd>>, String> {
    // Notes of strangers may be before it.
    for _ in 0..MOST_NOTES {
        let found = mailbox.map(Mailbox::take).transpose().map_err(|error| error.to_string())?.flatten();
        match found {
            Some(found) if found.bytes == note => return Ok(Some(found.descriptors)),
            Some(_) => {}
            None => break,
        }
    }
    Ok(None)
}

pub(super) const TOKEN_BYTES: usize = 32;
const MOST_NOTES: usize = 256;
