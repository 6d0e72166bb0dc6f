//! The plugin's settings, parsed once per context.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ccl_plugin::net::Properties;
use ccl_plugin::{Error, Settings};

use crate::wire::MAX_LANES;

/// Settings of one context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Interfaces to use as devices, in order; empty: detect.
    pub(crate) interfaces: Vec<(String, IpAddr)>,
    /// Ports to listen on; `0..=0`: any.
    pub(crate) port_range: RangeInclusive<u16>,
    /// Sockets per connection this side makes.
    pub(crate) lanes: usize,
    /// Longest message that is not striped.
    pub(crate) stripe_min_bytes: u64,
    /// `SO_SNDBUF`; 0: the kernel tunes it, but within a host.
    pub(crate) send_buffer_bytes: usize,
    /// `SO_RCVBUF`; 0: the kernel tunes it.
    pub(crate) recv_buffer_bytes: usize,
    /// `TCP_USER_TIMEOUT`; zero: the kernel's.
    pub(crate) user_timeout: Duration,
    /// Idle time before keepalive probes; zero: none.
    pub(crate) keepalive: Duration,
    /// How long a stranger may take for its hello.
    pub(crate) handshake_timeout: Duration,
    /// How long a connection may take; zero: as long as the host waits.
    pub(crate) connect_timeout: Duration,
}

impl Config {
    pub(crate) fn parse(settings: &Settings) -> Result<Config, Error> {
        let millis = |key, default| settings.parse(key, default).map(Duration::from_millis);
        let config = Config {
            interfaces: interfaces(settings.value("interfaces").unwrap_or_default())?,
            port_range: port_range(settings.value("port_range").unwrap_or_default())?,
            lanes: settings.parse("sockets", 1)?,
            stripe_min_bytes: settings.parse("stripe_min_bytes", 128 << 10)?,
            send_buffer_bytes: settings.parse("send_buffer_bytes", 0)?,
            recv_buffer_bytes: settings.parse("recv_buffer_bytes", 0)?,
            user_timeout: millis("user_timeout_ms", 0)?,
            keepalive: millis("keepalive_ms", 30_000)?,
            handshake_timeout: millis("handshake_timeout_ms", 5_000)?,
            connect_timeout: millis("connect_timeout_ms", 60_000)?,
        };
        if !(1..=MAX_LANES).contains(&config.lanes) {
            return Err(Error::invalid(format!(
                "setting sockets: expected 1 to {MAX_LANES}, found {}",
                config.lanes
            )));
        }
        for (key, _) in settings.iter().filter(|(key, _)| !KEYS.contains(key)) {
            tracing::debug!("setting {key} is not one of the socket network's; ignored");
        }
        Ok(config)
    }
}

/// What the devices have in common.
pub(crate) fn properties() -> Properties {
    Properties {
        latency_ns: 15_000,
        max_recvs: ccl_plugin::c::MAX_RECVS as u32,
        max_requests: crate::slots::SLOTS as u32,
        flags: ccl_plugin::c::FLAG_ANY_MEMORY,
        port: 1,
        ..Properties::default()
    }
}

fn interfaces(text: &str) -> Result<Vec<(String, IpAddr)>, Error> {
    let pair = |entry: &str| {
        let (name, address) = entry.split_once('=')?;
        Some((name.trim().to_string(), address.trim().parse().ok()?))
    };
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            pair(entry).ok_or_else(|| {
                Error::invalid(format!("setting interfaces: expected name=address, found \"{entry}\""))
            })
        })
        .collect()
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, Error> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(0..=0);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first > 0 && first <= last => Ok(first..=last),
        _ => Err(Error::invalid(format!("setting port_range: expected first-last, found \"{text}\""))),
    }
}

const KEYS: [&str; 10] = [
    "interfaces",
    "port_range",
    "sockets",
    "stripe_min_bytes",
    "send_buffer_bytes",
    "recv_buffer_bytes",
    "user_timeout_ms",
    "keepalive_ms",
    "handshake_timeout_ms",
    "connect_timeout_ms",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_bad_ones_are_named() {
        let config = Config::parse(&Settings::new(&[
            ("interfaces", "eth0=10.0.0.1, ib0=fe80::1"),
            ("port_range", "4000-4010"),
            ("sockets", "4"),
        ]))
        .unwrap();
        assert_eq!(config.interfaces[1].0, "ib0");
        assert_eq!((config.port_range, config.lanes), (4000..=4010, 4));
        for (key, value) in [
            ("interfaces", "eth0"),
            ("port_range", "9-1"),
            ("port_range", "0"),
            ("sockets", "0"),
            ("sockets", "17"),
            ("keepalive_ms", "soon"),
        ] {
            let error = Config::parse(&Settings::new(&[(key, value)])).unwrap_err();
            assert!(error.message().contains(key), "{error}");
        }
    }
}
