//! What a communicator will take, from its settings alone.

use super::init::{device_cut, edge_settings};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::exec::device::region_bytes;
use crate::memory::{DeviceFootprint, Footprint};

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

impl DeviceFootprint {
    /// What each of `n` ranks takes once it has joined, `sharing` of which are on each device, itself among them, of so many
    /// multiprocessors. Makes nothing, and asks no device.
    ///
    /// # Errors
    ///
    /// No ranks, or more on a device than there are; a setting of protocols that names none.
    pub fn before_use(
        n: u32,
        (sharing, multiprocessors): (u32, u32),
        config: &Config,
    ) -> Result<DeviceFootprint> {
        if !(1..=n).contains(&sharing) {
            return Err(Error::usage(
                format!("expected from 1 to n = {n} ranks on a device, found {sharing}"),
                "give the number of ranks, and how many of them share each device",
            ));
        }
        let settings = edge_settings(n, config);
        let cut = device_cut((settings.slots, settings.slot_bytes), config);
        let (region_bytes, channels) = region_bytes(config, cut, n, (sharing, multiprocessors))?;
        Ok(DeviceFootprint { region_bytes, channels: channels.collectives })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of the manual, in its words.
    fn by_the_manual(n: u64, l: u64, slots: u64, channels: u64) -> Footprint {
        let pages = |bytes: u64| bytes.next_multiple_of(4096);
        let s = ((512 << 10) / slots / n.div_ceil(8)).clamp(4 << 10, 1 << 20).next_multiple_of(64);
        let (edges, lines) = (l * channels * 3, slots.max(64));
        let places = if l <= 8 { 4 } else { 1 };
        let payload_bytes = pages(lines * s.min(4096)) + pages(slots * places * s);
        let shared_bytes = 4096 + pages(edges * (128 + 64 * lines)) + edges * payload_bytes;
        let connections = 3 * channels * (n - l);
        Footprint {
            shared_bytes,
            mapped_bytes: l * shared_bytes,
            private_bytes: 2 * connections * slots * (64 + 4 * s),
            connections,
            sockets: 1 + connections,
        }
    }

    #[test]
    fn footprints_are_those_of_the_manual() {
        for (n, l) in [(2, 2), (2, 1), (8, 4), (8, 8), (100, 9), (4096, 8)] {
            for (slots, channels) in [(2, 1), (8, 1), (100, 3)] {
                let vars = [("CCL_SLOTS", slots.to_string()), ("CCL_MAX_NCHANNELS", channels.to_string())];
                let config = Config::from_vars(vars).unwrap();
                let found = Footprint::at_most(n, l, &config).unwrap();
                let expected = by_the_manual(n.into(), l.into(), slots, channels);
                assert_eq!(found, expected, "{n} ranks, {l} on a host, {slots} slots, {channels} channels");
            }
        }
    }

    #[test]
    fn hosts_hold_some_of_the_ranks() {
        let config = Config::from_vars([("CCL_SLOTS", "8")]).unwrap();
        for (n, locals) in [(0, 0), (2, 0), (2, 3)] {
            assert!(Footprint::before_use(n, locals, &config).is_err(), "{locals} of {n}");
        }
        let apart = Config::from_vars([("CCL_SHM_DISABLE", "1")]).unwrap();
        assert_eq!(Footprint::at_most(4, 4, &apart), Footprint::at_most(4, 1, &config));
    }
}
