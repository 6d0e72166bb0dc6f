//! Moving data does not allocate. Counted are the allocations of the thread that moves it: the one that accepts connections may
//! still be tidying up.
#![allow(clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends counts no longer.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: the same contract.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn sends_receives_and_tests_do_not_allocate() {
    for settings in [&[][..], &[("sockets", "2"), ("stripe_min_bytes", "1000")]] {
        let (mut send, mut recv) = pair(&context(linked(), settings));
        let (source, mut room) = (pattern(0, 300_000), vec![0u8; 300_000]);
        let (mr, room_mr) = (register_send(&mut send, &source), register_recv(&mut recv, &mut room));
        let before = ALLOCATIONS.get();
        for bytes in [0, 8, 900, 5_000, 70_000, 300_000].into_iter().cycle().take(600) {
            // SAFETY: both buffers outlive the requests, which are waited for.
            let (mut sent, mut posted) = unsafe {
                let posted = recv.recv(room.as_mut_ptr(), 300_000, 1, &room_mr).unwrap().unwrap();
                (send.send(source.as_ptr(), bytes, 1, &mr).unwrap().unwrap(), posted)
            };
            let (mut is_sent, mut is_received) = (false, false);
            while !is_sent || !is_received {
                is_sent = is_sent || send.test(&mut sent).unwrap().is_some();
                is_received = is_received || recv.test(&mut posted).unwrap().is_some();
            }
        }
        assert_eq!(ALLOCATIONS.get(), before);
        assert!(before > 0, "allocations are counted");
    }
}
