//! How every rank of a host comes by its peers' descriptors.
//!
//! Ranks of the same process duplicate them by number. Others get them over Unix sockets, each with
//! a keyed hash that only a holder of the communicator's secret can make; a socket that cannot be
//! reached (another network namespace) is replaced by `/proc/<pid>/fd`. What fails is a reason to
//! use the network, never an error.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use super::mailbox::{Delivery, Mailbox, MailboxName, Note};
use crate::error::Result;

/// A rank of this host, as it described itself while joining.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Which rank.
    pub rank: Rank,
    /// Its socket's name, if it has one.
    pub mailbox: Option<MailboxName>,
    /// Its process, as it sees itself.
    pub process: u32,
    /// Whether process numbers mean the same there as here.
    pub same_processes: bool,
    /// Its descriptor's number.
    pub number: i32,
    /// The random bytes at the head of its memory.
    pub nonce: [u8; 32],
}

impl Neighbour {
    /// Whether it and `other` are threads of one process.
    pub(crate) fn is_thread_beside(&self, other: &Neighbour) -> bool {
        self.same_processes && other.same_processes && self.process == other.process
    }
}

/// A peer's descriptor, or why there is none.
pub type Parcel = Result<OwnedFd, String>;

/// One rank's side of the exchange: a state machine, driven by [`Exchange::step`].
pub struct Exchange<'a> {
    me: Neighbour,
    secret: [u8; 32],
    mailbox: Option<&'a Mailbox>,
    file: BorrowedFd<'a>,
    peers: Vec<Peer>,
}

struct Peer {
    neighbour: Neighbour,
    outgoing: bool,
    parcel: Option<Parcel>,
}

impl<'a> Exchange<'a> {
    /// Begins passing `file` to `peers` (other ranks of this host).
    pub fn new(
        me: Neighbour,
        secret: [u8; 32],
        mailbox: Option<&'a Mailbox>,
        file: BorrowedFd<'a>,
        peers: Vec<Neighbour>,
    ) -> Exchange<'a> {
        let begin = |neighbour: Neighbour| {
            let same = neighbour.is_thread_beside(&me);
            let parcel = same.then(|| duplicate(neighbour.number));
            Peer { outgoing: !same, parcel, neighbour }
        };
        let peers = peers.into_iter().map(begin).collect();
        Exchange { me, secret, mailbox, file, peers }
    }

    /// Sends and takes what it can. Returns whether anything moved. Never blocks.
    pub fn step(&mut self) -> Result<bool> {
        let sent = self.send_all()?;
        Ok(self.take_all()? || sent)
    }

    /// Whether every descriptor is sent and every peer's here or known not to come.
    pub fn finished(&self) -> bool {
        self.peers.iter().all(|peer| !peer.outgoing && peer.parcel.is_some())
    }

    /// Drives the exchange until it is finished or `deadline`, calling `check` now and then; an error
    /// of `check` ends it. What has not come by then is a reason in its [`Parcel`].
    pub fn run(mut self, deadline: Instant, check: &dyn Fn() -> Result<()>) -> Result<Vec<(Rank, Parcel)>> {
        while !self.finished() && Instant::now() < deadline {
            check()?;
            if !self.step()? {
                self.pause();
            }
        }
        let missing = || Err("its descriptor has not come in time".to_owned());
        Ok(self.peers.into_iter().map(|p| (p.neighbour.rank, p.parcel.unwrap_or_else(missing))).collect())
    }

    fn pause(&self) {
        match self.mailbox {
            Some(mailbox) => mailbox.wait(PAUSE),
            None => std::thread::sleep(PAUSE),
        }
    }

    fn send_all(&mut self) -> Result<bool> {
        let mut moved = false;
        for peer in self.peers.iter_mut().filter(|peer| peer.outgoing) {
            let delivery = match (self.mailbox, peer.neighbour.mailbox) {
                (Some(mailbox), Some(name)) => {
                    let note = note(&self.secret, &self.me, &peer.neighbour);
                    mailbox.post(name, &note, &[self.file])?
                }
                _ => Delivery::Unreachable,
            };
            if delivery == Delivery::Unreachable {
                // What does not carry my note does not carry the peer's either.
                peer.parcel.get_or_insert_with(|| open_through_proc(&peer.neighbour));
            }
            peer.outgoing = delivery == Delivery::Full;
            moved |= !peer.outgoing;
        }
        Ok(moved)
    }

    fn take_all(&mut self) -> Result<bool> {
        let Some(mailbox) = self.mailbox else { return Ok(false) };
        for taken in 0..MOST_NOTES {
            let Some(note) = mailbox.take()? else { return Ok(taken > 0) };
            self.accept(note);
        }
        Ok(true)
    }

    /// Keeps a note that a peer alone can have written; drops any other, its descriptor with it.
    fn accept(&mut self, arrived: Note) {
        let rank = arrived.bytes.first_chunk().map(|bytes| Rank(u32::from_le_bytes(*bytes)));
        let peer = self.peers.iter_mut().find(|peer| Some(peer.neighbour.rank) == rank);
        let (Some(peer), Some(descriptor)) = (peer, arrived.descriptors.into_iter().next()) else { return };
        let expected = note(&self.secret, &peer.neighbour, &self.me);
        // Hashes compare in constant time: how long it takes does not tell where notes differ.
        if blake3::hash(&arrived.bytes) == blake3::hash(&expected) {
            peer.parcel = Some(Ok(descriptor));
        }
    }
}

/// What `from` writes to `to`: its rank and a hash of both ends under the secret.
fn note(secret: &[u8; 32], from: &Neighbour, to: &Neighbour) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"ccl memory descriptor");
    for end in [from, to] {
        hasher.update(&end.rank.0.to_le_bytes());
        hasher.update(&end.nonce);
    }
    [&from.rank.0.to_le_bytes()[..], hasher.finalize().as_bytes()].concat()
}

/// A descriptor of this process, by number. Whether it is the right one shows in its nonce.
fn duplicate(number: i32) -> Parcel {
    if number < 0 {
        return Err(format!("it announced descriptor {number}"));
    }
    // SAFETY: the peer is a thread of this process and keeps its descriptor open until every rank
    // has agreed on paths. Were it gone or reused, F_DUPFD fails or yields a file with another nonce.
    let theirs = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(theirs, 0)
        .map_err(|e| format!("its descriptor {number} is not open: {e}"))
}

fn open_through_proc(peer: &Neighbour) -> Parcel {
    if !peer.same_processes {
        return Err(
            "its socket cannot be reached (another network namespace) and it has its own process numbers"
                .to_owned(),
        );
    }
    let path = format!("/proc/{}/fd/{}", peer.process, peer.number);
    let file = std::fs::File::options().read(true).write(true).open(&path);
    file.map(OwnedFd::from).map_err(|e| format!("its socket cannot be reached, nor can {path}: {e}"))
}

/// Notes read in one step, so that a stranger who floods the socket cannot hold the step.
const MOST_NOTES: usize = 256;
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::{Backing, MemoryFile};

    const SECRET: [u8; 32] = [9; 32];

    /// A neighbour that looks like another process, so that sockets are used.
    fn stranger(rank: u32, mailbox: Option<&Mailbox>, file: &MemoryFile) -> Neighbour {
        Neighbour {
            rank: Rank(rank),
            mailbox: mailbox.map(Mailbox::name),
            process: std::process::id(),
            same_processes: false,
            number: file.number(),
            nonce: [rank as u8; 32],
        }
    }

    fn file(bytes: usize) -> MemoryFile {
        let file = MemoryFile::create(Backing::Anonymous).unwrap();
        file.fix_size(bytes).unwrap();
        file
    }

    fn size(parcel: &Parcel) -> u64 {
        rustix::fs::fstat(parcel.as_ref().unwrap()).unwrap().st_size as u64
    }

    #[test]
    fn many_ranks_with_full_queues_all_get_the_right_descriptor() {
        let n = 24;
        let mailboxes: Vec<_> = (0..n).map(|_| Mailbox::bind().unwrap()).collect();
        let files: Vec<_> = (0..n).map(|r| file(4096 * (r + 1))).collect();
        let all: Vec<_> = (0..n).map(|r| stranger(r as u32, Some(&mailboxes[r]), &files[r])).collect();
        let mut exchanges: Vec<_> = (0..n)
            .map(|me| {
                let peers = all.iter().filter(|p| p.rank.index() != me).cloned().collect();
                Exchange::new(all[me].clone(), SECRET, Some(&mailboxes[me]), files[me].as_fd(), peers)
            })
            .collect();
        // Everybody sends before anybody reads: queues fill up.
        for exchange in &mut exchanges {
            exchange.send_all().unwrap();
        }
        while !exchanges.iter().all(Exchange::finished) {
            let moved = exchanges.iter_mut().map(|e| e.step().unwrap()).filter(|moved| *moved).count();
            assert!(moved > 0, "stuck");
        }
        for (me, exchange) in exchanges.into_iter().enumerate() {
            for (rank, parcel) in exchange.run(Instant::now(), &|| Ok(())).unwrap() {
                assert_eq!(size(&parcel), 4096 * (rank.index() as u64 + 1), "rank {me}");
            }
        }
    }

    #[test]
    fn threads_of_one_process_duplicate_by_number() {
        let (ours, theirs) = (file(4096), file(8192));
        let near = |rank, file: &MemoryFile| Neighbour { same_processes: true, ..stranger(rank, None, file) };
        let peers = vec![near(1, &theirs)];
        let exchange = Exchange::new(near(0, &ours), SECRET, None, ours.as_fd(), peers);
        assert!(exchange.finished());
        let parcels = exchange.run(Instant::now(), &|| Ok(())).unwrap();
        assert_eq!(size(&parcels[0].1), 8192);
    }

    #[test]
    fn a_stranger_without_the_secret_is_ignored() {
        let (a, b) = (Mailbox::bind().unwrap(), Mailbox::bind().unwrap());
        let (ours, theirs) = (file(4096), file(8192));
        let (me, peer) = (stranger(0, Some(&a), &ours), stranger(1, Some(&b), &theirs));
        let mut exchange = Exchange::new(me.clone(), SECRET, Some(&a), ours.as_fd(), vec![peer.clone()]);
        for forged in [note(&[8; 32], &peer, &me), vec![], vec![1], vec![1, 0, 0, 0], vec![0; 500]] {
            assert_eq!(b.post(a.name(), &forged, &[theirs.as_fd()]).unwrap(), Delivery::Sent);
        }
        exchange.step().unwrap();
        assert!(!exchange.finished());
        b.post(a.name(), &note(&SECRET, &peer, &me), &[theirs.as_fd()]).unwrap();
        exchange.step().unwrap();
        assert!(exchange.finished());
    }

    #[test]
    fn an_unreachable_socket_falls_back_to_proc_or_a_reason() {
        let mine = Mailbox::bind().unwrap();
        let (ours, theirs) = (file(4096), file(8192));
        let left = Mailbox::bind().unwrap().name();
        let gone = Neighbour { mailbox: Some(left), ..stranger(1, None, &theirs) };
        let me = stranger(0, Some(&mine), &ours);
        let run = |peer: Neighbour| {
            let exchange = Exchange::new(me.clone(), SECRET, Some(&mine), ours.as_fd(), vec![peer]);
            let until = Instant::now() + Duration::from_secs(5);
            exchange.run(until, &|| Ok(())).unwrap().remove(0).1
        };
        assert!(run(gone.clone()).unwrap_err().contains("namespace"));
        // As if another process: its number differs from mine.
        let elsewhere = Exchange::new(
            Neighbour { process: 0, ..me.clone() },
            SECRET,
            Some(&mine),
            ours.as_fd(),
            vec![Neighbour { same_processes: true, ..gone }],
        );
        let parcels = elsewhere.run(Instant::now() + Duration::from_secs(5), &|| Ok(())).unwrap();
        assert_eq!(size(&parcels[0].1), 8192);
    }

    #[test]
    fn silence_ends_at_the_deadline_with_a_reason() {
        let (a, b) = (Mailbox::bind().unwrap(), Mailbox::bind().unwrap());
        let (ours, theirs) = (file(4096), file(8192));
        let me = stranger(0, Some(&a), &ours);
        let exchange =
            Exchange::new(me, SECRET, Some(&a), ours.as_fd(), vec![stranger(1, Some(&b), &theirs)]);
        let parcels = exchange.run(Instant::now() + Duration::from_millis(20), &|| Ok(())).unwrap();
        assert!(parcels[0].1.as_ref().unwrap_err().contains("in time"));
    }
}
