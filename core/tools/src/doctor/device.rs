//! Devices and their driver.

use ccl::{Config, DeviceInfo, devices, kernel_supply};

use super::Finding;
use crate::size::format_bytes;

/// The devices that ranks may work on, or why there are none.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    match devices(config) {
        Err(none) => {
            let why = format!("{}; ranks work on host memory", none.reason());
            vec![Finding::ok("device", "CUDA", "no device", why), kernels(config, None)]
        }
        Ok(devices) => {
            devices.iter().flat_map(|device| [found(device), kernels(config, Some(device))]).collect()
        }
    }
}

fn found(device: &DeviceInfo) -> Finding {
    let (major, minor) = device.capability;
    let version = device.driver_version;
    let found = format!("{}, {}, sm_{major}{minor}", device.name, format_bytes(device.memory_bytes));
    let why = format!(
        "at {}, driver {}.{}; used by ranks that CCL_DEVICE gives it",
        device.bus_id,
        version / 1000,
        version % 1000 / 10
    );
    Finding::ok("device", format!("CUDA {}", device.ordinal), found, why)
}

/// Where kernels would come from. Without a device it does not matter that there are none.
fn kernels(config: &Config, device: Option<&DeviceInfo>) -> Finding {
    let supply = kernel_supply(config, device);
    let what = device.map_or("kernels".to_owned(), |device| format!("kernels of CUDA {}", device.ordinal));
    match device {
        Some(_) if !supply.is_there => {
            let why = format!("{}; ranks on this device fail at their first call", supply.why);
            Finding::warning("device", what, supply.from, why)
        }
        _ => Finding::ok("device", what, supply.from, supply.why),
    }
}
