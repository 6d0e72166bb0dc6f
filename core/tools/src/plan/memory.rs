//! `ccl plan memory`: what a communicator will take, before there is one.

use std::process::ExitCode;

use ccl::memory::{DeviceFootprint, Footprint};
use ccl::{Config, Error, Result};
use serde_json::json;

use crate::text;

/// Say how much memory and how many sockets each rank of a communicator takes.
///
/// Heeds the settings (CCL_BUFFSIZE, CCL_SLOTS, CCL_MAX_NCHANNELS, CCL_CHECKSUM, CCL_SHM_DISABLE; of devices also CCL_CHUNK_BYTES,
/// CCL_PROTO, CCL_CUDA_ONE_SHOT, CCL_CUDA_TWO_SHOT). Memory of the host costs pages only once touched, so these are limits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of ranks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    nranks: u32,
    /// Ranks on each host, which share memory [default: all]
    #[arg(short, long, value_name = "L", value_parser = clap::value_parser!(u32).range(1..))]
    local: Option<u32>,
    /// Say it for ranks on devices of one host, so many on each; multicast memory comes on top
    #[arg(short, long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    device: Option<u32>,
    /// Multiprocessors of a device, which decide how many channels there are
    #[arg(long, value_name = "M", default_value_t = 132, requires = "device", value_parser = clap::value_parser!(u32).range(1..))]
    multiprocessors: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints both footprints of a rank, and what its host holds.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let (n, local) = (args.nranks, args.local.unwrap_or(args.nranks));
    if local > n {
        return Err(Error::usage(
            format!("expected at most {n} ranks on a host, found {local}"),
            "give --local a number up to that of ranks",
        ));
    }
    let config = Config::load()?;
    let before_use = Footprint::before_use(n, local, &config)?;
    let at_most = Footprint::at_most(n, local, &config)?;
    let on_device = |sharing| DeviceFootprint::before_use(n, (sharing, args.multiprocessors), &config);
    let device = args.device.map(on_device).transpose()?;
    let host_bytes = |rank: &Footprint| u64::from(local) * (rank.shared_bytes + rank.private_bytes);
    text::print(&match args.json {
        true => format!(
            "{}\n",
            json!({
                "nranks": n,
                "local": local,
                "before_use": before_use,
                "at_most": at_most,
                "host_bytes_at_most": host_bytes(&at_most),
                "device": device,
            })
        ),
        false => {
            let mut table = text::table(["of each rank", "before use", "at most"]);
            for (name, value) in [
                ("shared memory it brings (B)", (|rank| rank.shared_bytes) as fn(&Footprint) -> u64),
                ("shared memory it maps (B)", |rank| rank.mapped_bytes),
                ("memory of its own (B)", |rank| rank.private_bytes),
                ("connections over the network", |rank| rank.connections),
                ("sockets", |rank| rank.sockets),
            ] {
                table.add_row([name.to_owned(), value(&before_use).to_string(), value(&at_most).to_string()]);
            }
            table.add_row([
                format!("all {local} of a host (B)"),
                host_bytes(&before_use).to_string(),
                host_bytes(&at_most).to_string(),
            ]);
            if let Some(DeviceFootprint { region_bytes, channels }) = device {
                let row = [
                    "slots in its device's memory (B)".to_owned(),
                    region_bytes.to_string(),
                    region_bytes.to_string(),
                ];
                table.add_row(row);
                table.add_row([
                    "channels between devices".to_owned(),
                    channels.to_string(),
                    channels.to_string(),
                ]);
            }
            format!("{table}\n")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
