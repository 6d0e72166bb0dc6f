//! The board: what a rank has entered, completed and waits for, readable by another thread.
//!
//! The thread that runs a rank's operations writes a few plain stores per operation. The thread that
//! watches the control connection reads, seldom. Neither waits for the other.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_plan::{Collective, Dtype, Level, Rank, ReduceOp};
use serde::{Deserialize, Serialize};

/// What an operation is: all ranks must enter the same under the same sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "SignatureText", try_from = "SignatureText")]
pub struct Signature {
    /// The collective.
    pub collective: Collective,
    /// The element type, if there are elements.
    pub dtype: Option<Dtype>,
    /// The reduce operation, if the collective reduces.
    pub reduce_op: Option<ReduceOp>,
    /// The level of determinism that the call asks for.
    pub level: Level,
    /// The distinguished rank, if the collective has one.
    pub root: Option<Rank>,
    /// Elements in the vector or block; 0 where blocks differ.
    pub count: u64,
    /// Digest of the blocks' counts and displacements where blocks differ, else 0.
    pub counts_hash: u64,
}

impl Signature {
    /// A signature with no elements, reduce operation or root.
    pub const fn new(collective: Collective) -> Signature {
        Signature {
            collective,
            dtype: None,
            reduce_op: None,
            level: Level::Run,
            root: None,
            count: 0,
            counts_hash: 0,
        }
    }

    /// The same with `count` elements of `dtype`.
    #[must_use]
    pub const fn of(self, count: u64, dtype: Dtype) -> Signature {
        Signature { count, dtype: Some(dtype), ..self }
    }

    /// The same, combined by `reduce_op`.
    #[must_use]
    pub const fn reduced_by(self, reduce_op: ReduceOp) -> Signature {
        Signature { reduce_op: Some(reduce_op), ..self }
    }

    /// The same at a level of determinism.
    #[must_use]
    pub const fn at(self, level: Level) -> Signature {
        Signature { level, ..self }
    }

    /// The same with `root` distinguished.
    #[must_use]
    pub const fn rooted_at(self, root: Rank) -> Signature {
        Signature { root: Some(root), ..self }
    }

    /// The same with the digest of uneven blocks.
    #[must_use]
    pub const fn with_counts_hash(self, counts_hash: u64) -> Signature {
        Signature { counts_hash, ..self }
    }

    /// The same as words.
    pub(crate) fn pack(&self) -> Packed {
        let dtype = self.dtype.map_or(NONE, |dtype| dtype as u8);
        let reduce_op = self.reduce_op.map_or(NONE, |reduce_op| reduce_op as u8);
        let flags = u8::from(self.root.is_some()) | (self.level as u8) << 1;
        let codes = u32::from_le_bytes([self.collective as u8, dtype, reduce_op, flags]);
        let root = self.root.map_or(0, |root| root.0);
        Packed([u64::from(codes) | u64::from(root) << 32, self.count, self.counts_hash])
    }

    fn unpack([codes, count, counts_hash]: [u64; 3]) -> Option<Signature> {
        let [collective, dtype, reduce_op, flags, ..] = codes.to_le_bytes();
        Some(Signature {
            collective: Collective::from_code(collective)?,
            dtype: Dtype::from_code(dtype),
            reduce_op: ReduceOp::from_code(reduce_op),
            level: Level::ALL.get(usize::from(flags >> 1)).copied()?,
            root: (flags & 1 != 0).then_some(Rank((codes >> 32) as u32)),
            count,
            counts_hash,
        })
    }
}

/// A [`Signature`] as a board stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed([u64; 3]);

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        if let Some(dtype) = self.dtype {
            write!(f, " of {} {dtype}", self.count)?;
        }
        if let Some(reduce_op) = self.reduce_op {
            write!(f, ", {reduce_op}")?;
        }
        if self.level != Level::Run {
            write!(f, ", determinism {}", self.level.name())?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        match self.counts_hash {
            0 => Ok(()),
            hash => write!(f, ", counts {hash:016x}"),
        }
    }
}

/// What a board showed at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The newest operation entered.
    pub last_entered: Option<u64>,
    /// The newest operation completed; all before it are complete as well.
    pub last_completed: Option<u64>,
    /// What the oldest operation in flight waits for.
    pub waiting: Option<Waiting>,
    /// The newest operations entered, oldest first, at most [`Board::RECENT`].
    pub recent: Vec<(u64, Signature)>,
}

impl Snapshot {
    /// The signature under which `sequence` was entered, if it is still remembered.
    pub fn signature(&self, sequence: u64) -> Option<Signature> {
        self.recent.iter().find(|(entered, _)| *entered == sequence).map(|(_, signature)| *signature)
    }
}

/// An instruction that cannot go on yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// The instruction's place in the program.
    pub instruction: u32,
    /// The rank it waits for.
    pub peer: u32,
}

/// What one rank of one communicator has entered, completed and waits for.
///
/// One writer at a time: callers of the writing methods order themselves, usually by the lock that
/// orders operations. Any number of readers. No method blocks; writing costs a handful of stores.
/// Sequence numbers grow by one per operation and are below `u64::MAX`.
#[derive(Debug)]
#[repr(align(128))]
pub struct Board {
    /// Sequence + 1; 0 before the first.
    last_entered: AtomicU64,
    /// Sequence + 1; 0 before the first.
    last_completed: AtomicU64,
    /// Instruction in the upper half, peer + 1 in the lower; 0 while nothing waits.
    waiting: AtomicU64,
    recent: [Entry; Board::RECENT],
}

/// An operation that was entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remembered {
    pub(crate) sequence: u64,
    pub(crate) signature: Signature,
    /// Nanoseconds since 1970, to some milliseconds.
    pub(crate) entered_ns: u64,
}

/// One entered operation, guarded by its stamp: its signature, and when it was entered. Generic so that the tests
/// explore every interleaving with loom's words.
#[derive(Debug, Default)]
struct Entry<W = AtomicU64> {
    /// Sequence + 1; 0 while the words are being written.
    stamp: W,
    words: [W; 4],
}

/// A word that several threads see.
trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Board {
    /// Entered operations remembered.
    pub const RECENT: usize = 64;

    /// An empty board.
    pub fn new() -> Board {
        Board {
            last_entered: AtomicU64::new(0),
            last_completed: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            recent: std::array::from_fn(|_| Entry::default()),
        }
    }

    /// The rank enters operation `sequence`.
    pub fn enter(&self, sequence: u64, signature: &Signature) {
        self.enter_packed(sequence, signature.pack());
    }

    /// The same with a signature packed before.
    #[inline]
    pub(crate) fn enter_packed(&self, sequence: u64, signature: Packed) {
        self.recent[sequence as usize % Board::RECENT].write(sequence, signature, now_ns());
        // Pairs with the load in `snapshot`: who sees the number sees the entry.
        self.last_entered.store(sequence + 1, Ordering::Release);
    }

    /// The rank completed operation `sequence`, and with it all before.
    pub fn complete(&self, sequence: u64) {
        self.waiting.store(0, Ordering::Relaxed);
        self.last_completed.store(sequence + 1, Ordering::Relaxed);
    }

    /// The oldest operation in flight cannot go on at `instruction` before `peer` does something.
    pub fn wait(&self, instruction: u32, peer: Rank) {
        let word = u64::from(instruction) << 32 | u64::from(peer.0.wrapping_add(1));
        self.waiting.store(word, Ordering::Relaxed);
    }

    /// It goes on.
    pub fn proceed(&self) {
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// What the board shows now.
    pub fn snapshot(&self) -> Snapshot {
        let last_completed = self.last_completed.load(Ordering::Relaxed).checked_sub(1);
        let waiting = self.waiting.load(Ordering::Relaxed);
        // Pairs with the store in `enter`.
        let entered = self.last_entered.load(Ordering::Acquire);
        let recent = self.recent_before(entered);
        Snapshot {
            last_entered: entered.checked_sub(1),
            last_completed,
            waiting: (waiting as u32)
                .checked_sub(1)
                .map(|peer| Waiting { instruction: (waiting >> 32) as u32, peer }),
            recent: recent.map(|Remembered { sequence, signature, .. }| (sequence, signature)).collect(),
        }
    }

    /// The newest operations entered, oldest first, at most [`Board::RECENT`].
    pub(crate) fn remembered(&self) -> Vec<Remembered> {
        // Pairs with the store in `enter`.
        self.recent_before(self.last_entered.load(Ordering::Acquire)).collect()
    }

    fn recent_before(&self, entered: u64) -> impl Iterator<Item = Remembered> {
        let oldest = entered.saturating_sub(Board::RECENT as u64);
        (oldest..entered).filter_map(|sequence| {
            let (signature, entered_ns) = self.recent[sequence as usize % Board::RECENT].read(sequence)?;
            Some(Remembered { sequence, signature, entered_ns })
        })
    }
}

impl Default for Board {
    fn default() -> Board {
        Board::new()
    }
}

impl<W: Word> Entry<W> {
    #[inline]
    fn write(&self, sequence: u64, Packed([codes, count, hash]): Packed, now_ns: u64) {
        self.stamp.store(0, Ordering::Relaxed);
        for (word, value) in self.words.iter().zip([codes, count, hash, now_ns]) {
            // Pairs with the loads in `read`: who sees the new word sees the blank stamp as well.
            word.store(value, Ordering::Release);
        }
        // Pairs with the first load in `read`: who sees the stamp sees the words.
        self.stamp.store(sequence + 1, Ordering::Release);
    }

    fn read(&self, sequence: u64) -> Option<(Signature, u64)> {
        // Pairs with the last store in `write`.
        if self.stamp.load(Ordering::Acquire) != sequence + 1 {
            return None;
        }
        // Pairs with the stores of words in `write`.
        let [codes, count, hash, entered_ns] =
            std::array::from_fn(|index| self.words[index].load(Ordering::Acquire));
        if self.stamp.load(Ordering::Relaxed) != sequence + 1 {
            return None;
        }
        Some((Signature::unpack([codes, count, hash])?, entered_ns))
    }
}

/// The clock that costs a few nanoseconds to read, and goes on every few milliseconds.
// One copy: the call costs less than what is saved beside each of several copies.
#[inline(never)]
pub(super) fn now_ns() -> u64 {
    // Not of `rustix`, whose own way to this clock fails under valgrind.
    let now = nix::time::ClockId::CLOCK_REALTIME_COARSE.now();
    now.map_or(0, |now| (now.tv_sec() as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec() as u64))
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// A signature in words, for reports and for the control connection.
#[derive(Serialize, Deserialize)]
struct SignatureText {
    collective: String,
    dtype: Option<String>,
    reduce_op: Option<String>,
    // Never left out: on the control connection a field has no name.
    level: String,
    root: Option<u32>,
    count: u64,
    counts_hash: u64,
}

impl From<Signature> for SignatureText {
    fn from(signature: Signature) -> SignatureText {
        SignatureText {
            collective: signature.collective.name().into(),
            dtype: signature.dtype.map(|dtype| dtype.name().into()),
            reduce_op: signature.reduce_op.map(|reduce_op| reduce_op.name().into()),
            level: signature.level.name().into(),
            root: signature.root.map(|root| root.0),
            count: signature.count,
            counts_hash: signature.counts_hash,
        }
    }
}

impl TryFrom<SignatureText> for Signature {
    type Error = ccl_plan::dtype::UnknownName;

    fn try_from(text: SignatureText) -> Result<Signature, Self::Error> {
        Ok(Signature {
            collective: text.collective.parse()?,
            dtype: text.dtype.map(|name| name.parse()).transpose()?,
            reduce_op: text.reduce_op.map(|name| name.parse()).transpose()?,
            level: Level::ALL
                .into_iter()
                .find(|level| level.name() == text.level)
                .ok_or(ccl_plan::dtype::UnknownName)?,
            root: text.root.map(Rank),
            count: text.count,
            counts_hash: text.counts_hash,
        })
    }
}

const NONE: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;

    fn signature(count: u64) -> Signature {
        Signature::new(Collective::AllReduce)
            .of(count, Dtype::F32)
            .reduced_by(ReduceOp::Sum)
            .with_counts_hash(!count)
    }

    #[test]
    fn shows_what_was_written() {
        let board = Board::new();
        assert_eq!(board.snapshot(), Snapshot::default());
        for sequence in 0..100 {
            board.enter(sequence, &signature(sequence));
        }
        board.complete(98);
        board.wait(7, Rank(0));
        let snapshot = board.snapshot();
        assert_eq!((snapshot.last_entered, snapshot.last_completed), (Some(99), Some(98)));
        assert_eq!(snapshot.waiting, Some(Waiting { instruction: 7, peer: 0 }));
        assert_eq!(snapshot.recent.len(), Board::RECENT);
        assert_eq!(snapshot.signature(36), Some(signature(36)));
        assert_eq!(snapshot.signature(35), None);
        board.proceed();
        assert_eq!(board.snapshot().waiting, None);
    }

    #[test]
    fn a_reader_never_sees_half_an_entry() {
        let board = Board::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 0..200_000 {
                    board.enter(sequence, &signature(sequence));
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                for (sequence, seen) in board.snapshot().recent {
                    assert_eq!(seen, signature(sequence));
                }
            }
        });
    }

    impl Word for loom::sync::atomic::AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }
    }

    /// An entry is overwritten while it is read: every interleaving gives one of the two, or none.
    #[test]
    fn no_interleaving_shows_half_an_entry() {
        loom::model(|| {
            let entry = loom::sync::Arc::new(Entry::<loom::sync::atomic::AtomicU64>::default());
            let shared = loom::sync::Arc::clone(&entry);
            let writer = loom::thread::spawn(move || {
                shared.write(0, signature(1).pack(), 1);
                shared.write(64, signature(2).pack(), 2);
            });
            let (first, second) = (entry.read(0), entry.read(64));
            assert!(first.is_none_or(|seen| seen == (signature(1), 1)), "{first:?}");
            assert!(second.is_none_or(|seen| seen == (signature(2), 2)), "{second:?}");
            writer.join().unwrap();
            assert_eq!(entry.read(64), Some((signature(2), 2)));
        });
    }

    #[test]
    fn reads_well() {
        let rooted = Signature::new(Collective::Reduce).of(8, Dtype::Bf16).reduced_by(ReduceOp::Max);
        assert_eq!(rooted.rooted_at(Rank(2)).to_string(), "reduce of 8 bfloat16, max, root 2");
        assert_eq!(Signature::new(Collective::Barrier).to_string(), "barrier");
        let strict = Signature::new(Collective::AllReduce).of(1, Dtype::F32).reduced_by(ReduceOp::Sum);
        assert_eq!(strict.at(Level::World).to_string(), "all_reduce of 1 float, sum, determinism world");
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(
            collective in 0u8..16, dtype in 0u8..13, op in 0u8..7, level in 0usize..3, root: Option<u32>,
            count: u64, counts_hash: u64,
        ) {
            let signature = Signature {
                collective: Collective::from_code(collective).unwrap(),
                dtype: Dtype::from_code(dtype),
                reduce_op: ReduceOp::from_code(op),
                level: Level::ALL[level],
                root: root.map(Rank),
                count,
                counts_hash,
            };
            prop_assert_eq!(Signature::unpack(signature.pack().0), Some(signature));
            let text = serde_json::to_string(&signature).unwrap();
            prop_assert_eq!(serde_json::from_str::<Signature>(&text).unwrap(), signature);
        }
    }
}
