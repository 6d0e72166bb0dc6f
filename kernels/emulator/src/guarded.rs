//! Memory for kernels that shows who writes beside it.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// Elements with a guard on either side, the first at a multiple of 128 bytes. Dropping it panics if a guard was
/// written to.
#[derive(Debug)]
pub struct Guarded<T: Plain> {
    lines: Lines,
    count: usize,
    elements: PhantomData<T>,
}

/// Numbers: every pattern of bits is one.
pub trait Plain: Copy + 'static + sealed::Sealed {}

impl<T: Plain> Guarded<T> {
    /// `count` elements, all bits zero.
    pub fn new(count: usize) -> Guarded<T> {
        Guarded { lines: Lines::new(count * size_of::<T>()), count, elements: PhantomData }
    }

    /// The addresses of the elements, for [`Options::allowed`](crate::Options::allowed).
    pub fn addresses(&self) -> Range<usize> {
        let start = self.as_ptr() as usize;
        start..start + self.count * size_of::<T>()
    }

    /// Whether nobody wrote beside the elements.
    pub fn is_whole(&self) -> bool {
        self.lines.are_whole()
    }
}

impl<T: Plain> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: inside the lines, aligned to 128 bytes, initialised, and every pattern of bits is a `T`.
        unsafe { std::slice::from_raw_parts(self.lines.start().cast(), self.count) }
    }
}

impl<T: Plain> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.start_mut().cast(), self.count) }
    }
}

impl<T: Plain> Drop for Guarded<T> {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.is_whole(), "somebody wrote beside {} elements", self.count);
    }
}

/// Zeroed bytes between guards.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: Vec<Line>,
    bytes: usize,
}

impl Lines {
    pub(crate) fn new(bytes: usize) -> Lines {
        let mut lines = vec![Line([GUARD; LINE_BYTES]); bytes.div_ceil(LINE_BYTES) + 2 * GUARD_LINES];
        let inside = lines.iter_mut().skip(GUARD_LINES).flat_map(|line| &mut line.0);
        inside.take(bytes).for_each(|byte| *byte = 0);
        Lines { lines, bytes }
    }

    pub(crate) fn start(&self) -> *const u8 {
        self.lines[GUARD_LINES..].as_ptr().cast()
    }

    pub(crate) fn start_mut(&mut self) -> *mut u8 {
        self.lines[GUARD_LINES..].as_mut_ptr().cast()
    }

    /// Whether the guards are as they were.
    pub(crate) fn are_whole(&self) -> bool {
        let inside = GUARD_LINES * LINE_BYTES..GUARD_LINES * LINE_BYTES + self.bytes;
        let bytes = self.lines.iter().flat_map(|line| &line.0).enumerate();
        bytes.filter(|(i, _)| !inside.contains(i)).all(|(_, byte)| *byte == GUARD)
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
struct Line([u8; LINE_BYTES]);

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($number:ty)*) => {$(
        impl sealed::Sealed for $number {}
        impl Plain for $number {}
    )*};
}

plain! { u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }

const LINE_BYTES: usize = 128;

/// Lines of guard on either side.
const GUARD_LINES: usize = 8;

/// What guards are filled with.
const GUARD: u8 = 0xa5;
