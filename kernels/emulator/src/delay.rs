//! Plain stores that are not visible yet: what a processor that orders memory weakly may do.
//!
//! A thread's plain stores are held back until it fences. A barrier hands what a thread holds back to its warp or its
//! block, whose members then release it with a fence of their own. Meanwhile some become visible by chance, in any
//! order. The block itself sees them at once. Strong stores go to memory directly, so they overtake.

use std::collections::BTreeMap;

use crate::random::Random;

/// What the threads of one block hold back.
pub(crate) struct Pending {
    threads: Vec<Bytes>,
    warps: Vec<Bytes>,
    block: Bytes,
    random: Random,
}

/// Bytes by the number of their word: the word's bytes and which of them are held back.
type Bytes = BTreeMap<usize, Word>;

#[derive(Clone, Copy, Default)]
struct Word {
    bytes: [u8; WORD],
    held: u8,
}

impl Pending {
    pub(crate) fn new(threads: usize, seed: u64) -> Pending {
        let empty = |count| vec![Bytes::new(); count];
        let (threads, warps) = (empty(threads), empty(threads.div_ceil(32)));
        Pending { threads, warps, block: Bytes::new(), random: Random::new(seed) }
    }

    /// A plain store of a thread.
    pub(crate) fn store(&mut self, thread: usize, at: usize, value: &[u8]) {
        let mut words = Bytes::new();
        for (i, byte) in value.iter().enumerate() {
            let word = words.entry((at + i) / WORD).or_default();
            word.bytes[(at + i) % WORD] = *byte;
            word.held |= 1 << ((at + i) % WORD);
        }
        for (number, word) in &words {
            self.forget(*number, word.held);
        }
        merge(&mut self.threads[thread], words);
        if self.random.below(ONE_IN) == 0 {
            self.release_one(thread);
        }
    }

    /// Puts what is held back of the loaded bytes over them.
    pub(crate) fn overlay(&self, thread: usize, at: usize, loaded: &mut [u8]) {
        let lists = [&self.block, &self.warps[thread / 32], &self.threads[thread]];
        for (i, byte) in loaded.iter_mut().enumerate() {
            let (number, place) = ((at + i) / WORD, (at + i) % WORD);
            for word in lists.iter().filter_map(|list| list.get(&number)) {
                if word.held & 1 << place != 0 {
                    *byte = word.bytes[place];
                }
            }
        }
    }

    /// A fence of a thread: what it, its warp and its block hold back becomes visible.
    pub(crate) fn release(&mut self, thread: usize) {
        for list in [&mut self.block, &mut self.warps[thread / 32], &mut self.threads[thread]] {
            write_all(std::mem::take(list));
        }
    }

    /// Whatever is held back of these bytes becomes visible.
    pub(crate) fn release_range(&mut self, at: usize, bytes: usize) {
        let words = at / WORD..(at + bytes).div_ceil(WORD);
        for list in self.threads.iter_mut().chain(&mut self.warps).chain([&mut self.block]) {
            for number in words.clone() {
                write_all(list.remove(&number).map(|word| (number, word)));
            }
        }
    }

    /// Everything becomes visible: the block has ended.
    pub(crate) fn release_all(&mut self) {
        for list in self.threads.iter_mut().chain(&mut self.warps).chain([&mut self.block]) {
            write_all(std::mem::take(list));
        }
    }

    /// The threads met at a barrier of the block.
    pub(crate) fn meet(&mut self, threads: impl Iterator<Item = usize>) {
        for thread in threads {
            let (of_warp, own) = (&mut self.warps[thread / 32], &mut self.threads[thread]);
            merge(&mut self.block, std::mem::take(of_warp));
            merge(&mut self.block, std::mem::take(own));
        }
    }

    /// The threads, of one warp, met at a barrier of the warp.
    pub(crate) fn meet_in_warp(&mut self, threads: impl Iterator<Item = usize>) {
        for thread in threads {
            let own = std::mem::take(&mut self.threads[thread]);
            merge(&mut self.warps[thread / 32], own);
        }
    }

    /// One word of a thread, any, becomes visible.
    fn release_one(&mut self, thread: usize) {
        let list = &mut self.threads[thread];
        let Some((first, last)) = list.keys().next().zip(list.keys().next_back()) else { return };
        let from = first + self.random.below(last - first + 1);
        let Some(number) = list.range(from..).next().map(|(number, _)| *number) else { return };
        write_all(list.remove(&number).map(|word| (number, word)));
    }

    /// A newer store takes the place of what was held back.
    fn forget(&mut self, number: usize, held: u8) {
        for list in self.threads.iter_mut().chain(&mut self.warps).chain([&mut self.block]) {
            if let Some(word) = list.get_mut(&number) {
                word.held &= !held;
            }
        }
    }
}

/// No byte is in two lists, so bytes of one word join.
fn merge(into: &mut Bytes, from: Bytes) {
    for (number, word) in from {
        let joined = into.entry(number).or_default();
        for place in (0..WORD).filter(|place| word.held & 1 << place != 0) {
            joined.bytes[place] = word.bytes[place];
        }
        joined.held |= word.held;
    }
}

fn write_all(words: impl IntoIterator<Item = (usize, Word)>) {
    for (number, word) in words {
        for place in (0..WORD).filter(|place| word.held & 1 << place != 0) {
            // SAFETY: a kernel stored to this byte, in memory of its arguments, and its launch has not ended.
            unsafe { ((number * WORD + place) as *mut u8).write_volatile(word.bytes[place]) };
        }
    }
}

const WORD: usize = 8;

/// One store in so many makes another visible.
const ONE_IN: usize = 8;
