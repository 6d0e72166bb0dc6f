//! The machine's topology: found in sysfs, or read from a file in NCCL's format.
//!
//! [`detect`] looks, [`read()`] and [`write()`] convert; what comes out is a [`Topology`], which is pure. GPUs
//! are found on the PCI bus; which NVLinks join them only the driver's library could tell, which is not asked
//! here: take a file that NCCL wrote for that.

mod processors;
mod read;
mod sysfs;
#[cfg(test)]
mod tests;
mod write;

use std::fs;
use std::path::Path;

use ccl_plan::Rank;
use ccl_plan::topology::Topology;

pub use processors::{Cache, Processor, processors};
pub use read::read;
pub use sysfs::{System, detect};
pub use write::write;

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
    read(&text, &path.display().to_string())
}

/// Writes a machine into a file, in NCCL's format.
///
/// # Errors
/// The file cannot be written.
pub fn save(topology: &Topology, path: &Path) -> Result<()> {
    fs::write(path, write(topology)).map_err(|error| {
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
