//! Whose connections the kernel paces.
//!
//! BBR sends no faster than it has seen a connection go. Within a host nothing can get lost, and what it has seen is how long the
//! peer was busy with other things: long messages then wait for nothing. So connections within a host are not paced, but
//! for one-way streams of short messages: what waits there for its time leaves in one segment, which costs less than as many as there
//! are messages (ADR 0079). Where the system does not pace nothing changes.

use socket2::Socket;

/// The pacing of one socket's sending side.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// Whether the system would pace it.
    may: bool,
    is_on: bool,
    /// Short messages in a row while nothing came,
    streak: u32,
    /// which were so many messages by then.
    reads: u32,
}

impl Pacing {
    /// Of a socket that the system would pace or not, and that is not paced.
    pub(crate) fn off(may: bool) -> Pacing {
        Pacing { may, ..Pacing::default() }
    }

    /// A message of so many bytes is about to be sent, after `reads` messages came from whomever.
    #[inline]
    pub(crate) fn sends(&mut self, bytes: usize, reads: u32, socket: &Socket) {
        if !self.may {
            return;
        }
        if bytes < LONG_BYTES {
            self.streak = if self.reads == reads { self.streak.saturating_add(1) } else { 0 };
            self.reads = reads;
            if self.streak == STREAK {
                self.turn(PACES, socket);
            }
        } else {
            self.streak = 0;
            if self.is_on {
                self.turn(NEVER_PACES, socket);
            }
        }
    }

    /// A refusal costs speed only.
    #[cold]
    fn turn(&mut self, congestion: &[u8], socket: &Socket) {
        self.is_on = congestion == PACES;
        let _ = socket.set_tcp_congestion(congestion);
    }
}

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
/// A longer message waits for its time.
const LONG_BYTES: usize = 8 << 10;
/// Short messages that make a stream. What was paced once goes slower ever after, so it takes many.
const STREAK: u32 = 1024;

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

    #[test]
    fn streams_of_short_messages_are_paced_until_a_long_one_comes() {
        let Some(socket) = paced() else { return };
        let mut pacing = Pacing::off(turn_off(&socket));
        for round in 0..2 {
            for sent in 0..STREAK {
                assert!(!is_paced(&socket), "{round} {sent}");
                pacing.sends(LONG_BYTES - 1, 0, &socket);
            }
            assert!(is_paced(&socket));
            pacing.sends(8, 0, &socket);
            pacing.sends(LONG_BYTES, 0, &socket);
        }
        assert!(!is_paced(&socket));
    }

    #[test]
    fn what_is_answered_is_never_paced() {
        let Some(socket) = paced() else { return };
        let mut pacing = Pacing::off(turn_off(&socket));
        (0..2 * STREAK).for_each(|reads| pacing.sends(8, reads, &socket));
        assert!(!is_paced(&socket));
    }

    #[test]
    fn where_the_system_does_not_pace_nothing_changes() {
        let Some(socket) = paced() else { return };
        turn_off(&socket);
        let mut pacing = Pacing::off(turn_off(&socket));
        (0..2 * STREAK).for_each(|_| pacing.sends(8, 0, &socket));
        assert!(!is_paced(&socket));
    }
}
