//! Which devices the machine has and how they are linked, from NVML: without a context on any of them.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// One device of the machine, whether this process may use it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmlDevice {
    /// `domain:bus:device.function` in lower-case hexadecimal digits, as [`crate::Device::pci_bus_id`] says it.
    pub pci_bus_id: String,
    /// Its name.
    pub name: String,
    /// `GPU-` and what it is known by everywhere.
    pub uuid: String,
    /// Its PCIe generation and number of lanes, at best; nothing if the device does not say.
    pub pcie: Option<(u32, u32)>,
    /// Its NVLinks that are up.
    pub links: Vec<NvmlLink>,
}

/// One NVLink that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmlLink {
    /// Its number at the device.
    pub link: u32,
    /// The NVLink version; nothing if the device does not say.
    pub version: Option<u32>,
    /// What is at the other end: a device of this machine, or else a switch. Nothing if the device does not say.
    pub peer_pci_bus_id: Option<String>,
}

/// Why NVML says nothing. Not an error: without it topology comes from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NVML says nothing of the devices: {reason}; links between them are taken from the driver and from sysfs"
)]
pub struct NvmlAbsent {
    /// What it said.
    pub reason: String,
}

/// The devices of the machine, in NVML's order, which is that of their bus ids. Takes milliseconds, on a machine that
/// was idle seconds; blocks.
///
/// # Errors
///
/// That there is no NVML, or no driver behind it.
pub fn nvml_devices() -> Result<Vec<NvmlDevice>, NvmlAbsent> {
    let nvml = Nvml::init().map_err(absent)?;
    let count = nvml.device_count().map_err(absent)?;
    (0..count).map(|index| describe(&nvml, index).map_err(absent)).collect()
}

fn describe(nvml: &Nvml, index: u32) -> Result<NvmlDevice, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let pcie = device.max_pcie_link_gen().ok().zip(device.max_pcie_link_width().ok());
    let up = |link: &u32| device.link_wrapper_for(*link).is_active().unwrap_or(false);
    let links = (0..MOST_LINKS).filter(up).map(|link| {
        let ends = device.link_wrapper_for(link);
        let peer = ends.remote_pci_info().ok().map(|info| bus_id(info.domain, info.bus, info.device));
        NvmlLink { link, version: ends.version().ok(), peer_pci_bus_id: peer }
    });
    let info = device.pci_info()?;
    Ok(NvmlDevice {
        pci_bus_id: bus_id(info.domain, info.bus, info.device),
        name: device.name()?,
        uuid: device.uuid()?,
        pcie,
        links: links.collect(),
    })
}

fn bus_id(domain: u32, bus: u32, device: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

fn absent(error: NvmlError) -> NvmlAbsent {
    NvmlAbsent { reason: error.to_string() }
}

/// More than any device has.
const MOST_LINKS: u32 = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_written_as_sysfs_does() {
        assert_eq!(bus_id(0, 0x3b, 0), "0000:3b:00.0");
        assert_eq!(bus_id(0x10, 0xff, 0x1f), "0010:ff:1f.0");
    }
}
