//! Where kernels would come from, for those who ask before a job.

use ccl_cuda::MINIMUM_NVRTC;

use super::DeviceInfo;
use super::image::Supply;
use crate::config::Config;

/// Where a device's kernels would come from, as `ccl doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSupply {
    /// Whether there are any.
    pub is_there: bool,
    /// From where, or what is missing.
    pub from: String,
    /// What that means, or what was looked for.
    pub why: String,
}

/// Where the kernels of a device would come from, or of any device if none is given. Looks for NVRTC, but compiles
/// nothing.
pub fn kernel_supply(config: &Config, device: Option<&DeviceInfo>) -> KernelSupply {
    let (capability, version) =
        device.map_or((ANY, NEWEST), |device| (device.capability, device.driver_version));
    of(&Supply::of(config, capability, version), device.is_some())
}

fn of(supply: &Supply, is_for_one: bool) -> KernelSupply {
    let there = |from: String, why: String| KernelSupply { is_there: true, from, why };
    if let Some(named) = &supply.named {
        let from = named.display().to_string();
        return match named.exists() {
            true => there(from, "CCL_CUDA_IMAGE names it".to_owned()),
            false => {
                KernelSupply { is_there: false, from, why: "CCL_CUDA_IMAGE names it: not there".to_owned() }
            }
        };
    }
    let code = |target: Option<ccl_kernels::target::Target>| match target.filter(|_| is_for_one) {
        Some(target) => target.to_string(),
        None => "code for devices".to_owned(),
    };
    let mut why = Vec::new();
    match supply.in_build(PROBE) {
        Ok(image) => {
            let parts: Vec<&str> = supply.embedded.iter().map(|(name, _)| *name).collect();
            return there(format!("embedded, {}", code(image.target)), format!("holds {}", parts.join(", ")));
        }
        Err(reason) => why.push(reason),
    }
    match supply.compiled(PROBE) {
        Ok(image) => {
            let kept = match &supply.cache {
                Some(cache) => format!("kept in {}", cache.folder().display()),
                None => "not kept".to_owned(),
            };
            let maker = image.compiler().unwrap_or_default();
            let why = format!("{}; compiled when first used, {kept}", why.join("; "));
            there(format!("{maker}, {}", code(image.target)), why)
        }
        Err(reason) => {
            why.push(reason);
            KernelSupply { is_there: false, from: "none".to_owned(), why: why.join("; ") }
        }
    }
}

/// Every supply that can serve anything has this kernel.
const PROBE: &str = "ccl_interpret_f32_sum_simple";
/// A device that every build and compiler serves, and a driver that takes all that is known.
const ANY: (u32, u32) = (9, 0);
const NEWEST: u32 = (MINIMUM_NVRTC.0 + 1) * 1000 + 990;

#[cfg(test)]
mod tests {
    use super::super::cache::Cache;
    use super::super::image::tests::{embedding, supply, toy};
    use super::*;

    #[test]
    fn what_serves_a_device_is_said_and_what_is_missing() {
        let maker = toy((13, 0), false);
        let said = |supply: &Supply, is_for_one| {
            let said = of(supply, is_for_one);
            (said.is_there, said.from, said.why)
        };
        let words = |is_there: bool, from: &str, why: &str| (is_there, from.to_owned(), why.to_owned());
        let embedded = Supply { embedded: embedding(&[80, 90]), ..supply(Some(&maker), 90) };
        assert_eq!(said(&embedded, true), words(true, "embedded, sm_90", "holds interpret.f32"));
        assert_eq!(said(&embedded, false).1, "embedded, code for devices");
        let newer = Supply { capability: 100, ..embedded };
        let why = "what this build embeds is not for sm_100; compiled when first used, not kept";
        assert_eq!(said(&newer, true), words(true, "Toy, compute_90", why));
        let kept = Supply { cache: Some(Cache::new("/kept".into())), ..supply(Some(&maker), 90) };
        let why = "this build embeds nothing; compiled when first used, kept in /kept";
        assert_eq!(said(&kept, true), words(true, "Toy, sm_90", why));
        let why = "this build embeds nothing; no NVRTC: libtoy.so cannot be loaded (not there)";
        assert_eq!(said(&supply(None, 90), true), words(false, "none", why));
        for (file, is_there) in [("/proc/self/exe", true), ("/nowhere/kernels.ptx", false)] {
            let named = Supply { named: Some(file.into()), ..supply(None, 90) };
            assert_eq!((said(&named, true).0, said(&named, true).1), (is_there, file.to_owned()));
        }
    }

    #[test]
    fn settings_decide_what_is_looked_for() {
        let config =
            Config::from_vars([("CCL_NVRTC_LIBRARY", "none"), ("CCL_KERNEL_CACHE", "none")]).unwrap();
        let said = kernel_supply(&config, None);
        if ccl_kernels::image::EMBEDDED.is_empty() {
            assert!(!said.is_there && said.why.ends_with("CCL_NVRTC_LIBRARY is none"), "{said:?}");
        }
    }
}
