//! Asking the processor for cache lines before they are used. It changes what is where, never what anybody sees.

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Brings the line at this address nearer, if this processor can be asked for it. Any address will do.
#[inline(always)]
pub(crate) fn ask(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; it reads nothing that anybody sees and faults nowhere.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The same, to be written: takes it out of other cores' caches.
#[inline(always)]
pub(crate) fn claim(line: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes nothing that anybody sees and faults nowhere; processors that do not know it take it for none.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// [`ask`] for every line of `bytes` from here on.
#[inline(always)]
pub(crate) fn ask_for_all(start: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE_BYTES) {
        ask(start.wrapping_add(at));
    }
}

/// [`claim`] for every line of `bytes` from here on.
#[inline(always)]
pub(crate) fn claim_all(start: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE_BYTES) {
        claim(start.wrapping_add(at));
    }
}
