//! The table of kernels: whatever was compiled makes itself known by name.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;

/// A kernel that can be emulated.
#[derive(Clone, Copy)]
pub struct Kernel {
    known: &'static Known,
}

/// The kernel whose extern "C" name is `name`.
pub fn kernel(name: &str) -> Option<Kernel> {
    kernels().find(|kernel| kernel.name() == name)
}

/// All kernels, in no order.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    // SAFETY: the list is complete before `main`, and never changes afterwards.
    let mut next = unsafe { ccl_emu_kernels() };
    std::iter::from_fn(move || {
        // SAFETY: null, or an entry of static duration.
        let known = unsafe { next.as_ref() }?;
        next = known.next;
        Some(Kernel { known })
    })
}

impl Kernel {
    /// Its extern "C" name.
    pub fn name(&self) -> &'static str {
        // SAFETY: a string literal of the kernel's source.
        let name = unsafe { CStr::from_ptr(self.known.name) };
        name.to_str().unwrap_or("a kernel whose name is not UTF-8")
    }

    /// Size of the struct it takes.
    pub fn args_bytes(&self) -> usize {
        self.known.args_bytes as usize
    }

    /// The largest block it may be launched with.
    pub fn most_threads(&self) -> u32 {
        self.known.most_threads
    }

    pub(crate) fn entry(&self) -> Entry {
        self.known.entry
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thread of a kernel, from beginning to end.
pub(crate) type Entry = unsafe extern "C" fn(args: *const c_void);

/// `CclEmuKernel` of `ccl_device_emu.h`.
#[repr(C)]
struct Known {
    name: *const c_char,
    entry: Entry,
    args_bytes: u32,
    most_threads: u32,
    next: *const Known,
}

// SAFETY: never changed after it was made known, before `main`.
unsafe impl Sync for Known {}
// SAFETY: as above.
unsafe impl Send for Known {}

unsafe extern "C" {
    fn ccl_emu_kernels() -> *const Known;
}
