//! Whose connections the kernel paces.
//!
//! BBR sends no faster than it has seen a connection go. Within a host nothing can get lost, and what it has seen is how long the
//! peer was busy with other things: long messages then wait for nothing. So connections within a host are not paced (ADR 0079). Where
//! the system does not pace nothing changes.

use socket2::Socket;

/// Turns pacing off; whether it was on. Connections that are made afterwards, or accepted, are never paced.
pub(crate) fn turn_off(socket: &Socket) -> bool {
    let paces = socket.tcp_congestion().is_ok_and(|name| name.split(|byte| *byte == 0).next() == Some(PACES));
    paces && socket.set_tcp_congestion(NEVER_PACES).is_ok()
}

/// Turns it on again.
pub(crate) fn turn_on(socket: &Socket) {
    let _ = socket.set_tcp_congestion(PACES);
}

/// The congestion control that paces.
const PACES: &[u8] = b"bbr";
/// One that does not, which every kernel has and grants everybody.
const NEVER_PACES: &[u8] = b"reno";

#[cfg(test)]
mod tests {
    use std::io::Write;

    use socket2::{Domain, Type};

    use super::*;

    /// A socket that the system paces, if it can.
    fn paced() -> Option<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Err(error) = socket.set_tcp_congestion(PACES) {
            // Past the harness, which keeps what a test that passes prints.
            let _ = writeln!(std::io::stderr(), "\nSKIPPED pacing: this kernel grants no BBR ({error})");
            return None;
        }
        Some(socket)
    }

    fn is_paced(socket: &Socket) -> bool {
        socket.tcp_congestion().unwrap().starts_with(PACES)
    }

    #[test]
    fn it_is_turned_off_and_on_where_the_system_paces() {
        let Some(socket) = paced() else { return };
        assert!(turn_off(&socket) && !is_paced(&socket));
        assert!(!turn_off(&socket), "nothing was on");
        turn_on(&socket);
        assert!(is_paced(&socket));
    }
}
