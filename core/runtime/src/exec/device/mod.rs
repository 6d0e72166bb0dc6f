//! Ranks that work on a CUDA device: what they have instead of the host executor.
//!
//! Plans, selection and decisions are the host's. A [`DeviceEngine`] uploads programs and launches the interpreter
//! on streams; edges lead straight to the memory of devices that can be reached, else to a [`pump`] that stands for
//! the other end and moves slots between pinned host memory and the fabric's edge.
//!
//! That there is no device is a value ([`NoDevice`]); a rank that asked for one gets it as an error.

mod blocking;
mod buffer;
mod cache;
mod captured;
mod channels;
mod common;
mod compiler;
mod dormant;
mod edges;
mod ending;
mod engine;
mod group;
mod image;
mod kernels;
mod launch;
mod leases;
mod lent;
mod list;
mod passing;
mod peers;
mod pieces;
mod protocol;
mod pump;
mod queue;
mod queues;
mod region;
mod signals;
mod special;
mod staging;
mod supply;
mod switch;
mod two_shot;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use ccl_cuda::{Context, DeviceMemory, Driver, Stream};
use ccl_plan::cost::Multicast;

pub use self::buffer::{Addresses, DeviceBuffer};
pub(crate) use self::channels::{Channels, DeviceCut};
use self::common::Common;
pub(crate) use self::dormant::Dormant;
pub(crate) use self::engine::{Call, DeviceEngine, Registered, Staged, Target};
use self::image::Supply;
pub(crate) use self::leases::Notice;
pub use self::lent::Registration;
pub use self::list::{DeviceInfo, NoDevice, devices};
pub(crate) use self::peers::region_bytes;
pub(crate) use self::protocol::Lines;
use self::protocol::Ways;
pub(crate) use self::special::OneShot;
pub use self::supply::{KernelSupply, kernel_supply};
pub use self::windows::DeviceWindow;
pub(crate) use self::windows::{not_of_the_host, register as register_window};
use crate::config::{Choices, Config, CudaUse};
use crate::error::{Error, Fault, Result};

/// A rank's device, ready to be used.
pub(crate) struct Opened {
    pub(super) context: Context,
    uuid: [u8; 16],
    multiprocessors: u32,
    /// Threads of a block that move data.
    worker_threads: u32,
    avoids_peers: bool,
    /// Nothing is lent, whatever is registered.
    lends_nothing: bool,
    /// The longest all-reduce that a kernel of its own makes, if the user says so.
    one_shot_bytes: Option<usize>,
    /// The shortest all-reduce that a kernel of its own makes between windows; 0: none.
    two_shot_bytes: usize,
    /// Whether multicast memory is used where it can be had.
    uses_switch: bool,
    /// The protocols that calls may follow, if the setting says so.
    protocols: Option<Choices>,
    /// Launches return when their kernel has ended.
    launches_block: bool,
    /// Of calls.
    deadline: Duration,
    kernels: Supply,
}

impl Opened {
    /// The device that the settings give the rank with this number among those of its host, if one.
    ///
    /// # Errors
    ///
    /// They give one, and there is none; the driver's.
    pub(crate) fn of(config: &Config, local_rank: u32) -> Result<Option<Opened>> {
        let count =
            || driver(config).ok().and_then(|driver| driver.devices().ok()).map_or(0, |all| all.len() as u32);
        let ordinal = config.device().device_of(local_rank, count);
        ordinal.map(|ordinal| Opened::numbered(config, ordinal)).transpose()
    }

    /// The device with this number.
    ///
    /// # Errors
    ///
    /// There is none; the driver's.
    fn numbered(config: &Config, ordinal: u32) -> Result<Opened> {
        let driver = driver(config).map_err(|none| {
            let cause = format!("expected device {ordinal}, found {none}");
            Error::new(
                Fault::Device,
                cause,
                "see `ccl doctor`, or leave CCL_DEVICE unset to work on host memory",
            )
        })?;
        let devices = driver.devices().map_err(failed)?;
        let device = devices.get(ordinal as usize).ok_or_else(|| {
            Error::usage(
                format!("expected a device below {}, found {ordinal}", devices.len()),
                "give the number of a device that `ccl doctor` lists; CUDA_VISIBLE_DEVICES hides others",
            )
        })?;
        let limits = device.limits().map_err(failed)?;
        Ok(Opened {
            context: Context::primary(device).map_err(failed)?,
            uuid: device.uuid().map_err(failed)?,
            multiprocessors: limits.multiprocessors,
            worker_threads: config.cuda_threads().max(96) - 64,
            avoids_peers: config.p2p_disable(),
            lends_nothing: config.direct() == Some(0),
            one_shot_bytes: config.cuda_one_shot().map(|bytes| bytes as usize),
            two_shot_bytes: config.cuda_two_shot() as usize,
            uses_switch: config.cuda_switch() != 0,
            protocols: protocol::allowed(config)?,
            launches_block: blocking::is_set(std::env::var(blocking::SETTING).ok().as_deref()),
            deadline: config.timeout(),
            kernels: Supply::of(config, limits.capability, driver.version()),
        })
    }

    /// The stream of copies from and to the host for all of this process that work on the device. A device has few queues, which streams
    /// share, and in a queue what waits holds up what is behind it: no stream without need, and nothing on this one that waits for
    /// kernels.
    fn copies(&self) -> Result<Arc<Stream>> {
        COPIES.of(self.context.raw().addr(), || Stream::new(&self.context, 0)).map_err(failed)
    }

    fn memory(&self, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(&self.context, bytes.max(1)).map_err(failed)
    }
}

/// From how many bytes on what all ranks are sent is stored once, where all devices and links can do all that there is.
///
/// # Errors
///
/// `CCL_PROTO` names something else than protocols.
pub(crate) fn multicast(config: &Config) -> Result<Multicast> {
    let all = Ways { direct: true, keep_lines: true };
    let allowed = protocol::allowed(config)?;
    Ok(if config.cuda_switch() == 0 { Multicast::NONE } else { protocol::multicast(allowed.as_ref(), all) })
}

/// The process's driver, loaded when first asked for.
fn driver(config: &Config) -> std::result::Result<Driver, NoDevice> {
    match config.cuda() {
        CudaUse::Off => Err(NoDevice::off()),
        CudaUse::Auto => Driver::load(config.cuda_library()).map_err(|absent| NoDevice::because(&absent)),
    }
}

/// A failed call of the driver.
#[cold]
pub(crate) fn failed(error: ccl_cuda::Error) -> Error {
    use ccl_cuda::Fault as F;

    let advice = match error.fault() {
        F::Memory => "free device memory, or lower CCL_BUFFSIZE, CCL_MAX_NCHANNELS or CCL_CUDA_ONE_SHOT",
        F::Capture => "make such a call once before the capture, so that all it needs is there",
        F::Device => "the device's context is lost: end this process, and look for the kernel that failed",
        F::Unsupported => "see `ccl doctor` for what this device and driver can do",
        _ => "see `ccl doctor`, and the system's log",
    };
    Error::new(Fault::Device, error.to_string(), advice)
}

/// By context.
static COPIES: Common<usize, Stream> = Common::new();
