//! Running out of descriptors, which belong to the whole process: hence alone in its program.

mod common;

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn strangers_that_use_up_all_descriptors_make_no_listener_fail() {
    let context = context(linked(), &[]);
    let (handle, mut listener) = context.listen(0).unwrap();
    let port = u16::from_le_bytes([handle.0[28], handle.0[29]]);
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    // Their own ends are open before there is a limit.
    let flood: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
    let highest = flood.iter().map(TcpStream::as_raw_fd).max().unwrap() as u64;
    let usual = getrlimit(Resource::Nofile);
    let limit = |current| setrlimit(Resource::Nofile, Rlimit { current, ..usual }).unwrap();
    limit(Some(highest + 8));
    for _ in 0..20 {
        assert!(listener.poll().unwrap().is_none());
    }
    limit(usual.current);
    let connecting = context.connect(0, handle).unwrap();
    let (mut send, mut recv) = join(connecting, || listener.poll());
    exchange(&mut send, &mut recv, &[Message { tag: 0, bytes: 9, room: 9 }], &[0], 1);
}
