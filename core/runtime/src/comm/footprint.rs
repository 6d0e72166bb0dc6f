//! What a communicator will take, from its settings alone.

use super::init::edge_settings;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::Footprint;

impl Footprint {
    /// What each of `n` ranks takes once it has joined, `locals` of which are on its host, itself among
    /// them. Makes nothing.
    ///
    /// # Errors
    ///
    /// No ranks, or more on a host than there are.
    pub fn before_use(n: u32, locals: u32, config: &Config) -> Result<Footprint> {
        Ok(both(n, locals, config)?[0])
    }

    /// The same once every edge has been used: messages and collectives with every other rank.
    ///
    /// # Errors
    ///
    /// As [`Footprint::before_use`].
    ///
    /// ```
    /// let config = ccl::Config::from_vars([("CCL_SLOTS", "8")])?;
    /// let alone = ccl::memory::Footprint::at_most(1, 1, &config)?;
    /// assert_eq!((alone.shared_bytes, alone.sockets), (0, 0));
    /// let two_hosts = ccl::memory::Footprint::at_most(8, 4, &config)?;
    /// assert_eq!(two_hosts.mapped_bytes, 4 * two_hosts.shared_bytes);
    /// # Ok::<(), ccl::Error>(())
    /// ```
    pub fn at_most(n: u32, locals: u32, config: &Config) -> Result<Footprint> {
        Ok(both(n, locals, config)?[1])
    }

    /// With the sockets of control and of connections over the socket network.
    pub(super) fn with_sockets(self, control: u64, config: &Config) -> Footprint {
        Footprint { sockets: control + self.connections * u64::from(config.socket_nsocks()), ..self }
    }
}

fn both(n: u32, locals: u32, config: &Config) -> Result<[Footprint; 2]> {
    if !(1..=n).contains(&locals) {
        return Err(Error::usage(
            format!("expected from 1 to n = {n} ranks on a host, found {locals}"),
            "give the number of ranks, and how many of them are on each host",
        ));
    }
    let locals = if config.shm_disable() { 1 } else { locals };
    let control = u64::from(n > 1);
    Ok(edge_settings(n, config).footprints(n, locals).map(|rank| rank.with_sockets(control, config)))
}
