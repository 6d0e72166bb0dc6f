//! The machine's topology: found in sysfs, or read from a file in NCCL's format.
//!
//! What comes out is a [`Topology`], which is pure. GPUs are found on the PCI bus; which NVLinks join them
//! only the driver's library could tell, which is not asked here: take a file that NCCL wrote for that.

mod processors;
mod sysfs;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use ccl_plan::Rank;
use ccl_plan::topology::{Topology, xml};

pub use processors::{Cache, Processor, processors};
pub use sysfs::{System, detect};

use crate::config::Config;
use crate::error::{Error, Result};

/// The machine as settings say: the one in `CCL_TOPO_FILE` if that is set, else the one that is here.
///
/// # Errors
/// A file that cannot be read, with the line that is wrong.
pub fn load(config: &Config) -> Result<Topology> {
    config.topo_file().map_or_else(|| Ok(detect(&System::default())), load_file)
}

/// The machine in a file.
///
/// # Errors
/// As [`load`].
pub fn load_file(path: &Path) -> Result<Topology> {
    let text = fs::read_to_string(path).map_err(|error| {
        let doing = format!("read the topology file {}", path.display());
        Error::system(&doing, error, "check the path; `ccl topo --xml` writes such a file")
    })?;
    let advice = "correct the file, or write a new one with `ccl topo --xml`";
    xml::read(&text).map_err(|error| Error::usage(format!("{}:{error}", path.display()), advice))
}

/// Writes a machine into a file, in NCCL's format.
///
/// # Errors
/// The file cannot be written.
pub fn save(topology: &Topology, path: &Path) -> Result<()> {
    fs::write(path, xml::write(topology)).map_err(|error| {
        let doing = format!("write the topology to {}", path.display());
        Error::system(&doing, error, "choose another path in CCL_TOPO_DUMP_FILE")
    })
}

/// What settings ask for when a communicator is made: a file that is named must be good, and rank 0
/// writes the dump. Looks at nothing if neither setting is set.
pub(crate) fn at_init(rank: Rank, config: &Config) -> Result<()> {
    let dump = config.topo_dump_file().filter(|_| rank == Rank(0));
    if dump.is_none() && config.topo_file().is_none() {
        return Ok(());
    }
    let topology = load(config)?;
    dump.map_or(Ok(()), |path| save(&topology, path))
}
