//! Whose the processor is, where that decides what is fast.

use std::sync::OnceLock;

use ccl_plan::cost::Make;

/// Whether it is AMD's, or Hygon's of the same make. There the system copies what stays in the caches faster than copies that ask for lines
/// ahead, reading another rank's memory through the kernel takes longer than slots where ranks share cores (ADR 0088) or are threads
/// (ADR 0092), slots are filled the faster the longer the blocks are (ADR 0089, 0093), messages over TCP take longer (ADR 0094), and some cores are far
/// from each other (ADR 0109, 0129).
pub(crate) fn is_of_amd() -> bool {
    #[cfg(test)]
    if let Some(amd) = PRETENDED.get() {
        return amd;
    }
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

/// Whose it is as far as costs differ by it.
pub(crate) fn make() -> Make {
    if is_of_amd() { Make::Amd } else { Make::Other }
}

#[cfg(test)]
thread_local! {
    static PRETENDED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// Runs this as on a processor of AMD's, then as on another one.
#[cfg(test)]
pub(crate) fn on_each(test: impl Fn()) {
    for amd in [true, false] {
        PRETENDED.set(Some(amd));
        test();
    }
    PRETENDED.set(None);
}
