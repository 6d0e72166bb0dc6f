//! Alone in its process, since it counts the descriptors of the process.

mod common;

use common::*;

#[test]
fn nothing_is_left_open() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..100 {
        let context = context(linked(), &[("sockets", "4")]);
        let _pair = pair(&context);
    }
    assert_eq!(open(), before);
}
