//! What a device is, out of any version's words into ccl's.

use std::ffi::{CStr, c_char, c_int};

use ccl_plugin::c;
use ccl_plugin::net::Properties;

use super::layout::{
    self, PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
};

/// What a plugin says of a device; what its version cannot say is as NCCL takes it then.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    name: String,
    pci_path: Option<String>,
    guid: u64,
    ptr_support: c_int,
    /// `None`: the version does not say.
    force_flush: Option<bool>,
    speed_mbps: c_int,
    port: c_int,
    latency_us: f32,
    max_comms: c_int,
    max_recvs: c_int,
    device_type: c_int,
    message_bytes: usize,
    rail: i16,
    plane: i16,
}

impl Facts {
    /// Whether the host completes its receives, without a program on the device.
    pub(crate) fn is_the_hosts(&self) -> bool {
        self.device_type == layout::DEVICE_HOST
    }

    /// What the host is told; or in what they break NCCL's contract or do not serve this one.
    pub(crate) fn properties(&self, is_narrow: bool, flushes: bool) -> Result<Properties, String> {
        let name = &self.name;
        let broken = |expected: &str, found: &dyn std::fmt::Display| {
            Err(format!("device {name}: expected {expected}, found {found}"))
        };
        if self.ptr_support & layout::PTR_HOST == 0 {
            return broken("one that takes host memory (ptrSupport bit 1)", &self.ptr_support);
        }
        if self.max_recvs < 1 {
            return broken("maxRecvs of at least 1", &self.max_recvs);
        }
        if !(1..=layout::LARGEST_MESSAGE_BYTES).contains(&self.message_bytes) {
            return broken("maxP2pBytes from 1 to 2^40", &self.message_bytes);
        }
        let on_device = self.ptr_support & (layout::PTR_CUDA | layout::PTR_DMABUF) != 0;
        let flush = on_device && flushes && self.force_flush.unwrap_or(true);
        Ok(Properties {
            name: name.clone(),
            pci_path: self.pci_path.clone(),
            guid: self.guid,
            port: self.port.try_into().unwrap_or(0),
            speed_mbps: self.speed_mbps.try_into().unwrap_or(0),
            latency_ns: (f64::from(self.latency_us) * 1000.0) as u32,
            max_comms: self.max_comms.try_into().unwrap_or(0),
            max_recvs: (self.max_recvs as u32).min(c::MAX_RECVS as u32),
            max_requests: if is_narrow { FEW_REQUESTS } else { REQUESTS },
            // A test says lengths in 31 bits in every version.
            max_message_bytes: self.message_bytes.min(c_int::MAX as usize) as u64,
            memory_kinds: self.ptr_support as u32 & MEMORY_KINDS,
            flags: if flush { c::FLAG_NEEDS_FLUSH } else { 0 },
            rail: u16::try_from(self.rail).ok(),
            plane: u16::try_from(self.plane).ok(),
        })
    }
}

impl Default for Facts {
    fn default() -> Facts {
        Facts {
            name: String::new(),
            pci_path: None,
            guid: 0,
            ptr_support: 0,
            force_flush: None,
            speed_mbps: 0,
            port: 0,
            latency_us: 0.0,
            max_comms: 0,
            max_recvs: 0,
            device_type: layout::DEVICE_HOST,
            message_bytes: layout::ASSUMED_MESSAGE_BYTES,
            rail: layout::UNDEFINED as i16,
            plane: layout::UNDEFINED as i16,
        }
    }
}

/// Properties of one version.
pub(crate) trait Said {
    /// # Safety
    ///
    /// Its strings are null or end in NUL.
    unsafe fn facts(&self) -> Facts;
}

impl Facts {
    /// # Safety
    ///
    /// Their strings are null or end in NUL.
    pub(crate) unsafe fn of(said: &impl Said) -> Facts {
        // SAFETY: the caller's contract.
        unsafe { said.facts() }
    }
}

/// What every version says, and what these say as well.
macro_rules! said {
    ($($properties:ident: |$said:ident| { $($field:ident: $value:expr),* $(,)? })*) => {$(
        #[allow(clippy::needless_update, reason = "the last version says everything")]
        impl Said for $properties {
            unsafe fn facts(&self) -> Facts {
                let $said = self;
                // SAFETY: the caller's contract.
                let (name, pci_path) = unsafe { (text($said.name), text($said.pci_path)) };
                Facts {
                    name: name.unwrap_or_default(),
                    pci_path: pci_path.filter(|path| !path.is_empty()),
                    guid: $said.guid,
                    ptr_support: $said.ptr_support,
                    speed_mbps: $said.speed,
                    port: $said.port,
                    latency_us: $said.latency,
                    max_comms: $said.max_comms,
                    max_recvs: $said.max_recvs,
                    $($field: $value,)*
                    ..Facts::default()
                }
            }
        }
    )*};
}

said! {
    PropertiesV6: |said| {}
    PropertiesV7: |said| { device_type: said.device_type }
    PropertiesV8: |said| { device_type: said.device_type }
    PropertiesV9: |said| {
        device_type: said.device_type,
        force_flush: Some(said.force_flush != 0),
        message_bytes: said.max_p2p_bytes,
    }
    PropertiesV11: |said| {
        device_type: said.device_type,
        force_flush: Some(said.force_flush != 0),
        message_bytes: said.max_p2p_bytes,
    }
    PropertiesV12: |said| {
        device_type: said.device_type,
        force_flush: Some(said.force_flush != 0),
        message_bytes: said.max_p2p_bytes,
        rail: said.rail,
        plane: said.plane,
    }
}

/// # Safety
///
/// `chars` is null or ends in NUL.
unsafe fn text(chars: *const c_char) -> Option<String> {
    if chars.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    Some(unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned())
}

/// Requests that every plugin has room for on one comm.
const REQUESTS: u32 = 32;
/// The same, of plugins that may have been made for the first versions.
const FEW_REQUESTS: u32 = 8;
/// Bits of memory that both contracts have, at the same places.
const MEMORY_KINDS: u32 = c::MEMORY_HOST | c::MEMORY_CUDA | c::MEMORY_DMABUF;

const _: () = {
    assert!(c::MEMORY_HOST as i32 == layout::PTR_HOST);
    assert!(c::MEMORY_CUDA as i32 == layout::PTR_CUDA);
    assert!(c::MEMORY_DMABUF as i32 == layout::PTR_DMABUF);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Facts {
        Facts { name: "eth0".into(), ptr_support: 1, max_recvs: 1, ..Facts::default() }
    }

    #[test]
    fn what_a_version_cannot_say_is_assumed() {
        let said = PropertiesV6 {
            name: c"mlx5_0".as_ptr(),
            pci_path: std::ptr::null(),
            guid: 7,
            ptr_support: 3,
            speed: 100_000,
            port: 1,
            latency: 1.5,
            max_comms: 65_536,
            max_recvs: 64,
        };
        // SAFETY: the strings above.
        let found = unsafe { Facts::of(&said) }.properties(true, true).unwrap();
        let expected = Properties {
            name: "mlx5_0".into(),
            guid: 7,
            port: 1,
            speed_mbps: 100_000,
            latency_ns: 1500,
            max_comms: 65_536,
            max_recvs: 8,
            max_requests: 8,
            max_message_bytes: 1 << 30,
            memory_kinds: c::MEMORY_HOST | c::MEMORY_CUDA,
            flags: c::FLAG_NEEDS_FLUSH,
            ..Properties::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_breaks_the_contract_is_told() {
        let words = |facts: Facts| facts.properties(false, true).unwrap_err();
        assert_eq!(
            words(Facts { max_recvs: 0, ..device() }),
            "device eth0: expected maxRecvs of at least 1, found 0"
        );
        assert!(words(Facts { message_bytes: 0, ..device() }).contains("maxP2pBytes"));
        assert!(words(Facts { message_bytes: (1 << 40) + 1, ..device() }).contains("found 1099511627777"));
        assert!(words(Facts { ptr_support: 2, ..device() }).contains("host memory"));
        let long = Facts { message_bytes: 1 << 40, ..device() };
        assert_eq!(long.properties(false, true).unwrap().max_message_bytes, c_int::MAX as u64);
    }

    #[test]
    fn a_flush_is_needed_where_the_plugin_says_so_or_cannot() {
        let flags = |said, on_device: bool| {
            let ptr_support = if on_device { 3 } else { 1 };
            let facts = Facts { force_flush: said, ptr_support, ..device() };
            facts.properties(false, true).unwrap().flags
        };
        assert_eq!(flags(None, true), c::FLAG_NEEDS_FLUSH);
        assert_eq!(flags(Some(true), true), c::FLAG_NEEDS_FLUSH);
        assert_eq!(flags(Some(false), true), 0);
        assert_eq!(flags(Some(true), false), 0);
    }
}
