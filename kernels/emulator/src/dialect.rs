//! The two structs that kernels and emulator share, and what kernels ask of the emulator.
//!
//! A function here runs on a fiber's stack. It writes down what the fiber asks for, leaves the stack, and finds the
//! answer when it is resumed. It never unwinds: C++ frames are below it.

use std::ffi::{CStr, c_char, c_void};

use crate::emulation::Window;
use crate::fiber::{Fiber, Request};
use crate::line::{Line, PART_BYTES};

/// `CclEmuThread` of `ccl_device_emu.h`: what a fiber sees of itself.
#[repr(C)]
pub(crate) struct Thread {
    pub(crate) host: *const Host,
    pub(crate) shared: *mut u8,
    pub(crate) thread: u32,
    pub(crate) threads: u32,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
    pub(crate) plant: u32,
    pub(crate) watched: u32,
    pub(crate) fuel: i32,
    pub(crate) plain_fuel: i32,
    pub(crate) stores: u64,
}

/// `CclEmuHost` of `ccl_device_emu.h`.
#[repr(C)]
pub(crate) struct Host {
    point: unsafe extern "C" fn(*mut Fiber),
    spin: unsafe extern "C" fn(*mut Fiber, *const u32),
    sync: unsafe extern "C" fn(*mut Fiber, u32, u32, u32, u32) -> u32,
    warp: unsafe extern "C" fn(*mut Fiber, u32, u32, u64, u32, u32) -> u64,
    line: unsafe extern "C" fn(*mut Fiber, u32, *mut u8, *mut u8, u32),
    load: unsafe extern "C" fn(*mut Fiber, *const u8, *mut u8, u32),
    store: unsafe extern "C" fn(*mut Fiber, *mut u8, *const u8, u32),
    store_all: unsafe extern "C" fn(*mut Fiber, *mut u8, *const u8, u32),
    strong: unsafe extern "C" fn(*mut Fiber, *const c_void, u32, u32),
    fence: unsafe extern "C" fn(*mut Fiber),
    timer: unsafe extern "C" fn(*mut Fiber) -> u64,
    stop: unsafe extern "C" fn(*mut Fiber, *const c_char, u32),
}

/// What every fiber is given.
pub(crate) static HOST: Host =
    Host { point, spin, sync, warp, line, load, store, store_all, strong, fence, timer, stop };

unsafe extern "C" {
    /// Makes a fiber the running one of this system thread.
    pub(crate) fn ccl_emu_enter(fiber: *mut Thread);
}

unsafe extern "C" fn point(fiber: *mut Fiber) {
    // SAFETY: kernels pass the fiber they run on.
    unsafe { Fiber::ask(fiber, Request::Point) };
}

unsafe extern "C" fn spin(fiber: *mut Fiber, at: *const u32) {
    // SAFETY: kernels pass the fiber they run on.
    unsafe { Fiber::ask(fiber, Request::Spin { at: at as usize }) };
}

unsafe extern "C" fn sync(fiber: *mut Fiber, id: u32, threads: u32, vote: u32, line: u32) -> u32 {
    // SAFETY: kernels pass the fiber they run on.
    unsafe { Fiber::ask(fiber, Request::Sync { id, threads, vote: vote != 0, line }) as u32 }
}

unsafe extern "C" fn warp(
    fiber: *mut Fiber,
    code: u32,
    lanes: u32,
    value: u64,
    argument: u32,
    line: u32,
) -> u64 {
    // SAFETY: kernels pass the fiber they run on.
    unsafe { Fiber::ask(fiber, Request::Warp { code, lanes, value, argument, line }) }
}

/// 16 bytes of a line: all lanes meet, then the first lane of each line that runs moves it.
unsafe extern "C" fn line(fiber: *mut Fiber, is_store: u32, at: *mut u8, part: *mut u8, line: u32) {
    let code = if is_store != 0 { Line::STORE } else { Line::LOAD };
    // SAFETY: kernels pass the fiber they run on, and 16 bytes for the part.
    unsafe {
        let mut own = [0; PART_BYTES];
        std::ptr::copy_nonoverlapping(part, own.as_mut_ptr(), PART_BYTES);
        Fiber::ask(fiber, Request::Line { code, at: at as usize, part: own, line });
        if let Some(line) = (*fiber).line.take() {
            line.go();
            line.part((*fiber).thread.thread as usize % 8, part);
        }
    }
}

unsafe extern "C" fn load(fiber: *mut Fiber, from: *const u8, to: *mut u8, bytes: u32) {
    // SAFETY: kernels pass the fiber they run on, and memory of the kernel's arguments.
    unsafe {
        Fiber::check(fiber, from as usize, bytes as usize);
        std::ptr::copy_nonoverlapping(from, to, bytes as usize);
        if let Some(pending) = &(*fiber).pending {
            let own = std::slice::from_raw_parts_mut(to, bytes as usize);
            pending.borrow().overlay((*fiber).thread.thread as usize, from as usize, own);
        }
    }
}

unsafe extern "C" fn store(fiber: *mut Fiber, to: *mut u8, from: *const u8, bytes: u32) {
    // SAFETY: kernels pass the fiber they run on, and memory of the kernel's arguments.
    unsafe {
        Fiber::check(fiber, to as usize, bytes as usize);
        match &(*fiber).pending {
            Some(pending) => {
                let value = std::slice::from_raw_parts(from, bytes as usize);
                pending.borrow_mut().store((*fiber).thread.thread as usize, to as usize, value);
            }
            None => std::ptr::copy_nonoverlapping(from, to, bytes as usize),
        }
    }
}

/// A store to multicast memory: one to each member's copy, from a member on that is another every time.
unsafe extern "C" fn store_all(fiber: *mut Fiber, to: *mut u8, from: *const u8, bytes: u32) {
    let (at, length) = (to as usize, bytes as usize);
    // SAFETY: kernels pass the fiber they run on, whose windows nobody changes.
    let windows = unsafe { (*fiber).windows.clone() };
    let holds = |window: &&Window| window.addresses.start <= at && at + length <= window.addresses.end;
    let Some(window) = windows.iter().find(holds) else {
        let why = "a store to all where no multicast memory is";
        // SAFETY: as above.
        unsafe { Fiber::ask(fiber, Request::Stop { why, line: 0, at }) };
        return;
    };
    let offset = at - window.addresses.start;
    // SAFETY: as above.
    let first =
        unsafe { (*fiber).thread.stores as usize ^ (*fiber).clock.get() as usize ^ (offset / length) };
    for member in 0..window.members.len() {
        let copy = window.members[(first + member) % window.members.len()] + offset;
        // SAFETY: as above; `Options::windows` says that as much memory is there as the window has addresses.
        unsafe {
            store(fiber, copy as *mut u8, from, bytes);
            // Whoever has a copy may see it before others have theirs.
            Fiber::ask(fiber, Request::Point);
        }
    }
}

/// Before a strong access: what this block still holds back of that memory goes first.
unsafe extern "C" fn strong(fiber: *mut Fiber, at: *const c_void, bytes: u32, _writes: u32) {
    // SAFETY: kernels pass the fiber they run on.
    unsafe {
        Fiber::check(fiber, at as usize, bytes as usize);
        if let Some(pending) = &(*fiber).pending {
            pending.borrow_mut().release_range(at as usize, bytes as usize);
        }
    }
}

unsafe extern "C" fn fence(fiber: *mut Fiber) {
    // SAFETY: kernels pass the fiber they run on.
    unsafe {
        if let Some(pending) = &(*fiber).pending {
            pending.borrow_mut().release((*fiber).thread.thread as usize);
        }
    }
}

unsafe extern "C" fn timer(fiber: *mut Fiber) -> u64 {
    // SAFETY: kernels pass the fiber they run on.
    unsafe { (*fiber).clock.get() * NS_PER_TURN }
}

unsafe extern "C" fn stop(fiber: *mut Fiber, why: *const c_char, line: u32) {
    // SAFETY: kernels pass the fiber they run on, and a string literal.
    unsafe {
        let why = CStr::from_ptr(why).to_str().unwrap_or("trap");
        Fiber::ask(fiber, Request::Stop { why, line, at: 0 });
    }
}

/// What one turn of a fiber counts on the emulated clock.
const NS_PER_TURN: u64 = 100;
