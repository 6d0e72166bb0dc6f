//! Devices and their driver.

use ccl::{Config, devices};

use super::Finding;
use crate::size::format_bytes;

/// The devices that ranks may work on, or why there are none.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    match devices(config) {
        Err(none) => vec![Finding::ok(
            "device",
            "CUDA",
            "no device",
            format!("{}; ranks work on host memory", none.reason()),
        )],
        Ok(devices) => devices
            .iter()
            .map(|device| {
                let (major, minor) = device.capability;
                let version = device.driver_version;
                let found =
                    format!("{}, {}, sm_{major}{minor}", device.name, format_bytes(device.memory_bytes));
                let why = format!(
                    "at {}, driver {}.{}; used by ranks that CCL_DEVICE gives it",
                    device.bus_id,
                    version / 1000,
                    version % 1000 / 10
                );
                Finding::ok("device", format!("CUDA {}", device.ordinal), found, why)
            })
            .collect(),
    }
}
