//! The devices of this process, or why there are none.

use std::fmt;

use ccl_cuda::{Absent, Device};

use super::driver;
use crate::config::Config;

/// One CUDA device as `ccl doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its PCI address.
    pub bus_id: String,
    /// Compute capability: (9, 0) for sm_90.
    pub capability: (u32, u32),
    /// All its memory.
    pub memory_bytes: u64,
    /// The driver's version, as the driver counts: 12030 is 12.3.
    pub driver_version: u32,
}

/// Why this process has no CUDA device. Most have none: it is an error only for a rank that asked for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDevice {
    reason: String,
}

impl NoDevice {
    pub(super) fn off() -> NoDevice {
        NoDevice { reason: "CCL_CUDA is off".to_owned() }
    }

    pub(super) fn because(absent: &Absent) -> NoDevice {
        NoDevice { reason: absent.to_string() }
    }

    /// Why, in one line.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no CUDA device: {}", self.reason)
    }
}

impl std::error::Error for NoDevice {}

/// The devices that ranks of this process may work on, never none. Loads the driver, which may take seconds the first
/// time.
///
/// # Errors
///
/// Why there are none. Never an error to stop at: ranks work on host memory then.
pub fn devices(config: &Config) -> Result<Vec<DeviceInfo>, NoDevice> {
    let driver = driver(config)?;
    let text = |error: ccl_cuda::Error| NoDevice { reason: error.to_string() };
    let devices = driver.devices().map_err(text)?;
    let described = devices.iter().map(|device| describe(device, driver.version()).map_err(text));
    let devices = described.collect::<Result<Vec<_>, _>>()?;
    match devices.is_empty() {
        true => Err(NoDevice { reason: "the driver finds none; look at CUDA_VISIBLE_DEVICES".to_owned() }),
        false => Ok(devices),
    }
}

fn describe(device: &Device, driver_version: u32) -> ccl_cuda::Result<DeviceInfo> {
    let limits = device.limits()?;
    Ok(DeviceInfo {
        ordinal: device.ordinal() as u32,
        name: device.name()?,
        bus_id: device.pci_bus_id()?,
        capability: limits.capability,
        memory_bytes: limits.memory_bytes as u64,
        driver_version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_a_value_that_says_why() {
        let none =
            |vars: [(&str, &str); 1]| devices(&Config::from_vars(vars).unwrap()).unwrap_err().to_string();
        assert_eq!(none([("CCL_CUDA", "off")]), "no CUDA device: CCL_CUDA is off");
        let missing = none([("CCL_CUDA_LIBRARY", "/nowhere/libcuda.so.1")]);
        assert!(
            missing.starts_with("no CUDA device") && missing.contains("/nowhere/libcuda.so.1"),
            "{missing}"
        );
    }
}
