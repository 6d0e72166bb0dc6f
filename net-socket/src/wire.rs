//! What travels: the handle out of band, a hello and its answer once, then message headers, and fillers between messages.
//!
//! All numbers are little-endian. Every decoder takes a fixed number of bytes and nothing in them
//! decides how much is read, allocated or waited for, but the length of a message, which is checked
//! against the room posted for it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ccl_plugin::net::Handle;

/// Bytes of a [`Hello`].
pub(crate) const HELLO_BYTES: usize = 72;
/// Bytes of the answer to a hello.
pub(crate) const ANSWER_BYTES: usize = 8;
/// The answer: the connection is accepted. There is no other; a refusal closes the connection.
pub(crate) const ANSWER: [u8; ANSWER_BYTES] = *b"cclsokA1";
/// Bytes of a [`Header`].
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes without a meaning, which may stand where a header may: what is behind lies better for copying (ADR 0095). They begin with
/// their mark and how many follow the first [`HEADER_BYTES`]. This one stands before a long message,
pub(crate) static FILLER: [u8; FILLER_BYTES] = filler();
pub(crate) const FILLER_BYTES: usize = 96;
/// and this one between the header's message and its payload, if that is a message, too.
pub(crate) static FILLER_BETWEEN: [u8; 80] = filler();
/// Longest filler, with its mark, that a peer may send.
const MOST_FILLER_BYTES: usize = 256;
/// Most sockets of one connection.
pub(crate) const MAX_LANES: usize = 16;

/// What a connector needs to know of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Where the port is.
    pub(crate) address: SocketAddr,
    /// Which listener behind the port.
    pub(crate) cookie: u64,
    /// Proof that the handle was seen.
    pub(crate) key: [u8; 32],
}

impl Target {
    pub(crate) fn to_handle(self) -> Handle {
        let mut bytes = [0; 128];
        let (ip, scope) = match self.address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        bytes[..8].copy_from_slice(HANDLE_MAGIC);
        bytes[8..24].copy_from_slice(&ip.octets());
        bytes[24..28].copy_from_slice(&scope.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.address.port().to_le_bytes());
        bytes[32..40].copy_from_slice(&self.cookie.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.key);
        Handle(bytes)
    }

    pub(crate) fn from_handle(handle: &Handle) -> Option<Target> {
        let bytes = &handle.0;
        let (magic, port) = (&bytes[..8], u16::from_le_bytes(array(&bytes[28..30])));
        if magic != HANDLE_MAGIC || port == 0 {
            return None;
        }
        let ip = Ipv6Addr::from(array::<16>(&bytes[8..24]));
        let scope = u32::from_le_bytes(array(&bytes[24..28]));
        let address = match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
        };
        Some(Target {
            address,
            cookie: u64::from_le_bytes(array(&bytes[32..40])),
            key: array(&bytes[40..72]),
        })
    }
}

/// The first bytes on every socket of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) key: [u8; 32],
    pub(crate) cookie: u64,
    /// Random; the same on all sockets of one connection.
    pub(crate) connection: u64,
    /// Messages longer than this are striped over the sockets.
    pub(crate) stripe_min_bytes: u64,
    /// Which socket of the connection this is, below `lanes`.
    pub(crate) lane: u16,
    /// How many there are, 1..=[`MAX_LANES`].
    pub(crate) lanes: u16,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(HELLO_MAGIC);
        bytes[8..40].copy_from_slice(&self.key);
        bytes[40..48].copy_from_slice(&self.cookie.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.connection.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.stripe_min_bytes.to_le_bytes());
        bytes[64..66].copy_from_slice(&self.lane.to_le_bytes());
        bytes[66..68].copy_from_slice(&self.lanes.to_le_bytes());
        bytes
    }

    /// The hello, or why these bytes are none.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, &'static str> {
        if &bytes[..8] != HELLO_MAGIC {
            return Err("its first bytes are not a hello of this protocol");
        }
        let hello = Hello {
            key: array(&bytes[8..40]),
            cookie: u64::from_le_bytes(array(&bytes[40..48])),
            connection: u64::from_le_bytes(array(&bytes[48..56])),
            stripe_min_bytes: u64::from_le_bytes(array(&bytes[56..64])),
            lane: u16::from_le_bytes(array(&bytes[64..66])),
            lanes: u16::from_le_bytes(array(&bytes[66..68])),
        };
        if hello.lanes == 0 || usize::from(hello.lanes) > MAX_LANES || hello.lane >= hello.lanes {
            return Err("its number of sockets is out of range");
        }
        Ok(hello)
    }
}

/// What precedes every message on the first socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) bytes: u64,
    pub(crate) tag: u32,
    /// Whether what comes after it may wait until it is acknowledged (ADR 0100).
    pub(crate) is_marked: bool,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(if self.is_marked { MARKED_MAGIC } else { HEADER_MAGIC });
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The header, or nothing if the stream is out of step.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let is_marked = &bytes[..4] == MARKED_MAGIC;
        let header = Header {
            is_marked,
            tag: u32::from_le_bytes(array(&bytes[4..8])),
            bytes: u64::from_le_bytes(array(&bytes[8..])),
        };
        (is_marked || &bytes[..4] == HEADER_MAGIC).then_some(header)
    }
}

const fn filler<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < FILLER_MAGIC.len() {
        bytes[at] = FILLER_MAGIC[at];
        at += 1;
    }
    bytes[8] = (N - HEADER_BYTES) as u8;
    bytes
}

/// How long a filler is that begins with these bytes, with them; nothing if none does.
#[inline]
pub(crate) fn filler_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<usize> {
    let rest = u64::from_le_bytes(array(&bytes[8..]));
    let fits = &bytes[..4] == FILLER_MAGIC && rest <= (MOST_FILLER_BYTES - HEADER_BYTES) as u64;
    fits.then_some(HEADER_BYTES + rest as usize)
}

/// The share of a message that goes over one socket: offset and length.
///
/// Both ends compute it from the message's length, so shares need no headers. A message of up to
/// `stripe_min_bytes` goes over the first socket alone.
#[inline]
pub(crate) fn share(bytes: usize, lanes: usize, stripe_min_bytes: u64, lane: usize) -> (usize, usize) {
    if lanes == 1 || bytes as u64 <= stripe_min_bytes {
        return if lane == 0 { (0, bytes) } else { (0, 0) };
    }
    let each = bytes.div_ceil(lanes).next_multiple_of(SHARE_ALIGN_BYTES);
    let offset = (lane * each).min(bytes);
    (offset, each.min(bytes - offset))
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the range has the array's length")
}

const HANDLE_MAGIC: &[u8; 8] = b"cclsokL1";
const HELLO_MAGIC: &[u8; 8] = b"cclsokH3";
const HEADER_MAGIC: &[u8; 4] = b"ccM1";
const MARKED_MAGIC: &[u8; 4] = b"ccS1";
const FILLER_MAGIC: &[u8; 4] = b"ccF1";
/// Shares begin on a page, so that no two sockets' copies touch one cache line or page.
const SHARE_ALIGN_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in any::<[u8; HELLO_BYTES]>(), mut handle in proptest::collection::vec(any::<u8>(), 128), magic in any::<bool>()) {
            let mut hello = bytes;
            if magic {
                hello[..8].copy_from_slice(HELLO_MAGIC);
                handle[..8].copy_from_slice(HANDLE_MAGIC);
            }
            if let Ok(found) = Hello::decode(&hello) {
                prop_assert!(found.lane < found.lanes && usize::from(found.lanes) <= MAX_LANES);
            }
            let _ = Target::from_handle(&Handle(handle.try_into().unwrap()));
            let _ = Header::decode(&bytes[..HEADER_BYTES].try_into().unwrap());
        }

        #[test]
        fn what_is_encoded_is_decoded(key in any::<[u8; 32]>(), cookie: u64, connection: u64, stripe_min_bytes: u64, lanes in 1u16..=16, tag: u32, bytes: u64, is_marked: bool) {
            let hello = Hello { key, cookie, connection, stripe_min_bytes, lane: lanes - 1, lanes };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let header = Header { bytes, tag, is_marked };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn fillers_are_no_headers_and_have_a_longest_length(rest: u64) {
            let mut bytes: [u8; HEADER_BYTES] = *FILLER.first_chunk().unwrap();
            prop_assert_eq!((filler_bytes(&bytes), Header::decode(&bytes)), (Some(FILLER_BYTES), None));
            bytes[8..].copy_from_slice(&rest.to_le_bytes());
            prop_assert_eq!(filler_bytes(&bytes).is_some(), rest <= (MOST_FILLER_BYTES - HEADER_BYTES) as u64);
            prop_assert_eq!(filler_bytes(&Header { bytes: rest, tag: 0, is_marked: false }.encode()), None);
        }

        #[test]
        fn handles_keep_either_family(ip: [u8; 16], v4: bool, port in 1u16.., scope: u32, cookie: u64, key: [u8; 32]) {
            let address = if v4 {
                SocketAddr::from(([ip[0], ip[1], ip[2], ip[3]], port))
            } else {
                SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope))
            };
            let target = Target { address, cookie, key };
            prop_assert_eq!(Target::from_handle(&target.to_handle()), Some(target));
        }

        #[test]
        fn shares_cover_a_message_once(bytes in 0usize..5_000_000, lanes in 1usize..=16, stripe_min_bytes in 0u64..100_000) {
            let mut end = 0;
            for lane in 0..lanes {
                let (offset, length) = share(bytes, lanes, stripe_min_bytes, lane);
                if length > 0 {
                    prop_assert_eq!(offset, end);
                    end = offset + length;
                }
            }
            prop_assert_eq!(end, bytes);
        }
    }
}
