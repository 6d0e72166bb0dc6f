//! Library-owned working memory of one rank's operations.

/// A growing, line-aligned block that operations use for scratch cells.
#[derive(Default)]
pub(crate) struct Scratch {
    lines: Vec<Line>,
    staged: Vec<u8>,
    bounce: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    /// A copy of `input`, valid until the next.
    pub(crate) fn stage(&mut self, input: &[u8]) -> *const u8 {
        self.staged.clear();
        self.staged.extend_from_slice(input);
        self.staged.as_ptr()
    }

    /// Buffers of [`BOUNCE_BYTES`] each, for as many inputs as a step can have.
    pub(crate) fn bounce(&mut self) -> *mut u8 {
        if self.bounce.is_empty() {
            self.bounce.resize(4 * BOUNCE_BYTES / size_of::<Line>(), Line([0; 64]));
        }
        self.bounce.as_mut_ptr().cast()
    }

    /// Makes room for `bytes`. Must not be called while an operation that uses the scratch is
    /// under way: cells move.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(size_of::<Line>());
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0; 64]));
        }
    }

    /// The address of cell `first` when cells have `cell_bytes` each.
    pub(crate) fn cells(&mut self, first: usize, cell_bytes: usize) -> *mut u8 {
        self.lines.as_mut_ptr().cast::<u8>().wrapping_add(first * cell_bytes)
    }
}

/// A piece of what is read directly and folded: long enough that the system call does not show, short
/// enough to stay in the second-level cache.
pub(crate) const BOUNCE_BYTES: usize = 64 << 10;
