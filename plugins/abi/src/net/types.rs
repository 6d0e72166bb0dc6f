//! Values that pass through the traits.

use std::ffi::c_char;
use std::num::NonZeroUsize;

use crate::c;
use crate::code::Code;
use crate::error::{Error, Result};

/// Where a listener can be reached: opaque bytes that travel out of band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; c::HANDLE_BYTES]);

/// What a network device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name, at most 63 bytes are kept.
    pub name: String,
    /// Its directory in sysfs, if it is a device.
    pub pci_path: Option<String>,
    /// Equal for devices that share one chip's bandwidth.
    pub guid: u64,
    /// Port number on the chip, 1-based; 0 unknown.
    pub port: u32,
    /// Bandwidth in 10⁶ bits per second; 0 unknown.
    pub speed_mbps: u32,
    /// One-way latency added by the network; 0 unknown.
    pub latency_ns: u32,
    /// Most connections at a time; 0 no limit.
    pub max_comms: u32,
    /// Most buffers in one grouped receive, 1..=[`c::MAX_RECVS`].
    pub max_recvs: u32,
    /// Requests that fit in flight on one comm, at least 8.
    pub max_requests: u32,
    /// Longest message.
    pub max_message_bytes: u64,
    /// Any of the `MEMORY_*` bits.
    pub memory_kinds: u32,
    /// Any of the `FLAG_*` bits.
    pub flags: u32,
    /// Rail, if known.
    pub rail: Option<u16>,
    /// Fabric plane, if known.
    pub plane: Option<u16>,
}

impl Default for Properties {
    /// A nameless device for host memory that groups nothing and holds 8 requests.
    fn default() -> Properties {
        Properties {
            name: String::new(),
            pci_path: None,
            guid: 0,
            port: 0,
            speed_mbps: 0,
            latency_ns: 0,
            max_comms: 0,
            max_recvs: 1,
            max_requests: 8,
            max_message_bytes: 1 << 40,
            memory_kinds: c::MEMORY_HOST,
            flags: 0,
            rail: None,
            plane: None,
        }
    }
}

impl Properties {
    pub(crate) fn to_c(&self) -> c::CclNetPropertiesV1 {
        let mut out = c::CclNetPropertiesV1 {
            size: size_of::<c::CclNetPropertiesV1>() as u32,
            memory_kinds: self.memory_kinds,
            flags: self.flags,
            port: self.port,
            guid: self.guid,
            max_message_bytes: self.max_message_bytes,
            speed_mbps: self.speed_mbps,
            latency_ns: self.latency_ns,
            max_comms: self.max_comms,
            max_recvs: self.max_recvs,
            max_requests: self.max_requests,
            rail: self.rail.map_or(-1, i32::from),
            plane: self.plane.map_or(-1, i32::from),
            reserved: 0,
            name: [0; 64],
            pci_path: [0; 256],
        };
        copy_text(&self.name, &mut out.name);
        copy_text(self.pci_path.as_deref().unwrap_or_default(), &mut out.pci_path);
        out
    }
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary host memory.
    Host,
    /// CUDA memory of a device, by address.
    Cuda {
        /// The CUDA ordinal.
        device: i32,
    },
    /// Device memory exported as a dma-buf.
    DmaBuf {
        /// The CUDA ordinal.
        device: i32,
        /// The descriptor; the host closes it after the call.
        fd: i32,
        /// Where in the descriptor's buffer the memory begins.
        offset_bytes: u64,
    },
}

/// Memory to register.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Its address.
    pub address: usize,
    /// Its length.
    pub bytes: usize,
    /// Where it is.
    pub kind: MemoryKind,
}

impl Memory {
    /// Whether it is host memory; else an error that says what it is.
    pub(crate) fn expect_host(&self) -> Result<()> {
        match self.kind {
            MemoryKind::Host => Ok(()),
            other => {
                let words = format!("expected host memory, found {other:?}");
                Err(Error::new(Code::UNSUPPORTED, words))
            }
        }
    }
}

/// A registration, opaque to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr(pub usize);

impl Mr {
    /// The registration of a network that needs none.
    pub const NONE: Mr = Mr(0);
}

/// A pending operation, opaque to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(pub NonZeroUsize);

/// A message to send.
///
/// The host promises that the bytes stay valid and unchanged until the request is done or the comm
/// is closed, and that they lie in the registration.
#[derive(Clone, Copy, Debug)]
pub struct SendBuffer {
    /// Its first byte.
    pub data: *const u8,
    /// Its length, possibly 0.
    pub bytes: usize,
    /// The receiver's receives with this tag match it, in the order posted.
    pub tag: u32,
    /// The registration it lies in.
    pub mr: Mr,
}

/// Where most of a message is that is not yet where it will be sent from.
///
/// The host promises that the message's own bytes are writable, that it is longer than its head, and that the
/// others are readable during the call, and not in the message.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere {
    /// How many of the message's first bytes are where they belong.
    pub head_bytes: usize,
    /// The first of the others, in host memory without a registration.
    pub data: *const u8,
}

/// Room for a message.
///
/// The host promises that the bytes stay valid and untouched by others until the request is done or
/// the comm is closed. All of them may be written, also past the end of a shorter message.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer {
    /// Its first byte.
    pub data: *mut u8,
    /// Its length: the longest message that fits.
    pub bytes: usize,
    /// The tag of the message.
    pub tag: u32,
    /// The registration it lies in.
    pub mr: Mr,
}

// SAFETY: a description of memory; who dereferences it answers for the access.
unsafe impl Send for SendBuffer {}
// SAFETY: as above.
unsafe impl Send for RecvBuffer {}

/// Copies `text` with a NUL, cut to what fits at a character boundary.
pub(crate) fn copy_text(text: &str, out: &mut [c_char]) {
    let mut length = text.len().min(out.len() - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    for (to, from) in out.iter_mut().zip(text.as_bytes()[..length].iter().filter(|byte| **byte != 0)) {
        *to = *from as c_char;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character() {
        let mut out = [0; 4];
        copy_text("aé€", &mut out);
        assert_eq!(out.map(|c| c as u8), [b'a', 0xc3, 0xa9, 0]);
    }
}
