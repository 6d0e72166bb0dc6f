//! Whose the processor is, where that decides what is fast.

use std::sync::OnceLock;

/// Whether it is AMD's, or Hygon's of the same make. There the system copies what stays in the caches faster than copies that ask for lines
/// ahead, and reading another process's memory takes longer than slots where ranks share cores (ADR 0088).
pub(crate) fn is_of_amd() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let id = std::arch::x86_64::__cpuid(0);
            let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).concat();
            [&b"AuthenticAMD"[..], b"HygonGenuine"].contains(&vendor.as_slice())
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    })
}
