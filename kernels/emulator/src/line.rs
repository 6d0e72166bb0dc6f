//! Lines of the protocol ll128: 128 bytes that eight lanes move as one.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one lane.
pub(crate) const PART_BYTES: usize = 16;

/// Lanes of one line.
pub(crate) const LINE_LANES: usize = 8;

/// One line on its way. The first of its lanes that runs after the warp has met moves it, so that the lines of one warp
/// move at different times and each moves at once.
pub(crate) struct Line {
    at: usize,
    is_store: bool,
    words: RefCell<[u64; 2 * LINE_LANES]>,
    moved: Cell<bool>,
}

impl Line {
    /// The code of a load among the functions of a warp.
    pub(crate) const LOAD: u32 = 7;
    /// The code of a store.
    pub(crate) const STORE: u32 = 8;

    /// The line of eight lanes' addresses and parts. `Ok(None)`: no lane has one.
    pub(crate) fn new(code: u32, lanes: &[(usize, [u8; PART_BYTES])]) -> Result<Option<Line>, &'static str> {
        let at = lanes.first().map_or(0, |lane| lane.0);
        if lanes.iter().all(|lane| lane.0 == 0) {
            return Ok(None);
        }
        let in_order = (0..).step_by(PART_BYTES).map(|offset| at + offset);
        if lanes.len() != LINE_LANES
            || !at.is_multiple_of(128)
            || !lanes.iter().map(|lane| lane.0).eq(in_order.take(lanes.len()))
        {
            return Err("eight lanes have no aligned line in order, and are not all without one");
        }
        let mut words = [0; 2 * LINE_LANES];
        for (word, bytes) in words.iter_mut().zip(lanes.iter().flat_map(|lane| lane.1.chunks_exact(8))) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(Some(Line {
            at,
            is_store: code == Line::STORE,
            words: RefCell::new(words),
            moved: Cell::new(false),
        }))
    }

    /// Moves the line, if no lane has yet. The last word, where the flag is, is stored last and loaded first: another
    /// system thread that sees it sees the line.
    pub(crate) fn go(&self) {
        if self.moved.replace(true) {
            return;
        }
        let memory = self.at as *const AtomicU64;
        let mut words = self.words.borrow_mut();
        for i in 0..words.len() {
            // SAFETY: kernels pass 128 bytes of their arguments' memory, aligned to 128.
            unsafe {
                match self.is_store {
                    // Release and acquire: the flag's store and load are a pair.
                    true => (*memory.add(i)).store(words[i], Ordering::Release),
                    false => {
                        let i = words.len() - 1 - i;
                        words[i] = (*memory.add(i)).load(Ordering::Acquire);
                    }
                }
            }
        }
    }

    /// Gives a lane what it loaded; nothing of a store.
    ///
    /// # Safety
    ///
    /// `part` is valid for writes of 16 bytes.
    pub(crate) unsafe fn part(&self, lane: usize, part: *mut u8) {
        if self.is_store {
            return;
        }
        let words = self.words.borrow();
        // SAFETY: the caller's contract, and `lane` is below 8.
        unsafe { part.cast::<[u64; 2]>().write_unaligned([words[2 * lane], words[2 * lane + 1]]) };
    }
}
