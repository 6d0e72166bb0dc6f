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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::memory::MOST_DESCRIPTORS;

    fn inode(descriptor: &OwnedFd) -> u64 {
        std::fs::File::from(descriptor.try_clone().unwrap()).metadata().unwrap().ino()
    }

    #[test]
    fn descriptors_come_in_order_behind_notes_of_strangers() {
        let (from, to) = (Mailbox::bind().unwrap(), Mailbox::bind().unwrap());
        let pipes: Vec<OwnedFd> = (0..MOST_DESCRIPTORS).map(|_| rustix::pipe::pipe().unwrap().0).collect();
        let all: Vec<_> = pipes.iter().map(AsFd::as_fd).collect();
        assert_eq!(take(Some(&to), b"mine").unwrap().map(|all| all.len()), None);
        for note in [&b"theirs"[..], b"", b"mine", b"mine too"] {
            post(Some(&from), (Rank(1), Some(to.name())), note, &all).unwrap();
        }
        let taken = take(Some(&to), b"mine").unwrap().unwrap();
        assert!(taken.iter().map(inode).eq(pipes.iter().map(inode)));
        assert_eq!(take(Some(&to), b"mine too").unwrap().map(|all| all.len()), Some(MOST_DESCRIPTORS));
        assert_eq!(take(Some(&to), b"mine").unwrap().map(|all| all.len()), None);
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        let (from, gone) = (Mailbox::bind().unwrap(), Mailbox::bind().unwrap().name());
        let null = std::fs::File::open("/dev/null").unwrap();
        let send =
            |from, to, count| post(from, (Rank(3), to), b"note", &vec![null.as_fd(); count]).unwrap_err();
        assert_eq!(send(None, Some(gone), 1), "no Unix socket leads to rank 3");
        assert_eq!(send(Some(&from), None, 1), "no Unix socket leads to rank 3");
        assert_eq!(send(Some(&from), Some(gone), 1), "the Unix socket of rank 3: Unreachable");
        let many = send(Some(&from), Some(from.name()), MOST_DESCRIPTORS + 1);
        assert!(many.contains("33 descriptors for one note"), "{many}");
        assert_eq!(take(None, b"note").unwrap().map(|all| all.len()), None);
    }
}
