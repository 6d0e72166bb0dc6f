//! Which network a communicator uses, and with which settings.

use std::net::IpAddr;

use ccl_net_socket::table as socket_table;
use ccl_plugin_host::NetPlugin;
pub use ccl_plugin_host::{Candidate, Verdict};

use crate::config::Config;
use crate::discover::interfaces::{self, Chosen, Wishes};
use crate::error::{Error, Fault, Result};
use crate::transport::NetSettings;

/// The plugin that the settings ask for: the first usable of `CCL_NET_PLUGIN`, else `libccl-net.so` or
/// `libnccl-net.so` if there is one that works, else the linked-in sockets. Logs a line per candidate.
///
/// # Errors
///
/// Plugins were named and none can be used, or `CCL_NET` names another network than the one found.
pub fn choose(config: &Config) -> Result<NetPlugin> {
    let plugin = match config.net_plugin() {
        [] => default_plugin()?,
        [only] if is_none(only) || only == "socket" && config.net().is_none_or(is_socket) => linked()?,
        [only] if only.starts_with(FAULT) => named(only)?,
        names => load(&names.join(","))?,
    };
    match config.net() {
        Some(wanted) if !wanted.eq_ignore_ascii_case(plugin.name()) => Err(Error::usage(
            format!("expected the network {wanted} (CCL_NET), found {}", plugin.name()),
            "name its plugin in CCL_NET_PLUGIN, or unset CCL_NET",
        )),
        _ => Ok(plugin),
    }
}

/// What became of every file that [`choose`] considers, best first; nothing is said of the linked-in sockets,
/// which need no file.
pub fn candidates(config: &Config) -> Vec<Candidate> {
    let spec = match config.net_plugin() {
        [] => DEFAULT_PLUGINS.to_string(),
        [only] if is_none(only) || is_socket(inside(only)) => return Vec::new(),
        [only] => inside(only).to_owned(),
        names => names.join(","),
    };
    NetPlugin::load(&spec).0
}

/// The plugin that one entry of `CCL_NET_PLUGIN` means; `socket` is the linked-in one, `fault:socket?drop_after=9`
/// the same with faults on purpose ([`NetPlugin::with_faults`]).
///
/// # Errors
///
/// It cannot be used, or its faults cannot be read.
pub fn named(entry: &str) -> Result<NetPlugin> {
    let name = inside(entry);
    let plugin = if is_socket(name) { linked()? } else { load(name)? };
    let Some(faulty) = entry.strip_prefix(FAULT) else { return Ok(plugin) };
    let rules = faulty.split_once('?').map_or("", |(_, rules)| rules);
    tracing::warn!(target: "ccl::net", network = name, rules, "faults on purpose");
    plugin.with_faults(rules).map_err(|error| {
        Error::usage(error.to_string(), "see the chapter on network plugins for the faults there are")
    })
}

/// The name or file of an entry, without faults.
fn inside(entry: &str) -> &str {
    let name = entry.strip_prefix(FAULT).unwrap_or(entry);
    if entry.starts_with(FAULT) { name.split_once('?').map_or(name, |(name, _)| name) } else { name }
}

/// Settings of the network for this host, seen from where the root is: interfaces in order of preference, ports, buffers.
pub(super) fn settings(config: &Config, root: Option<IpAddr>) -> Result<NetSettings> {
    let mut settings = vec![("sockets".to_string(), config.socket_nsocks().to_string())];
    let wishes = match root {
        // The way that led to the root leads to the other ranks as well.
        Some(root) => Wishes::of(config).towards(root, interfaces::source_towards(root).ok()),
        None => Wishes::of(config),
    };
    let choice = interfaces::choose(&interfaces::list_lately()?, &wishes)?;
    let pairs: Vec<_> = choice.chosen.iter().map(pair).collect();
    settings.push(("interfaces".into(), pairs.join(",")));
    if let Some(range) = config.port_range() {
        settings.push(("port_range".into(), format!("{}-{}", range.start(), range.end())));
    }
    for (key, bytes) in
        [("send_buffer_bytes", config.socket_sndbuf()), ("recv_buffer_bytes", config.socket_rcvbuf())]
    {
        settings.extend(bytes.map(|bytes| (key.to_string(), bytes.to_string())));
    }
    let plugin = choose(config)?;
    if plugin.is_made_for_nccl() {
        // A little less than a call may take, so that it is the network that says what it waits for.
        let wait = config.timeout().mul_f32(0.9).as_millis();
        settings.push(("connect_wait_ms".into(), wait.try_into().unwrap_or(u64::MAX).to_string()));
    }
    Ok(NetSettings { plugin: Some(plugin), settings, device: Some(0) })
}

fn pair(chosen: &Chosen) -> String {
    format!("{}={}", chosen.name, chosen.address.ip)
}

fn is_socket(name: &str) -> bool {
    name.eq_ignore_ascii_case("socket")
}

/// The word for no plugin, as NCCL reads it.
fn is_none(name: &str) -> bool {
    name.eq_ignore_ascii_case("none")
}

fn default_plugin() -> Result<NetPlugin> {
    let (candidates, loaded) = NetPlugin::load(DEFAULT_PLUGINS);
    match loaded {
        Ok(plugin) => {
            for candidate in &candidates {
                tracing::info!(target: "ccl::net", %candidate, "network plugin");
            }
            Ok(plugin)
        }
        Err(error) => {
            tracing::debug!(target: "ccl::net", %error, "no external network");
            linked()
        }
    }
}

fn linked() -> Result<NetPlugin> {
    NetPlugin::linked(socket_table()).map_err(|error| Error::bug(error.to_string()))
}

fn load(spec: &str) -> Result<NetPlugin> {
    let (candidates, loaded) = NetPlugin::load(spec);
    for candidate in &candidates {
        tracing::info!(target: "ccl::net", %candidate, "network plugin");
    }
    loaded.map_err(|error| {
        Error::new(
            Fault::Plugin { name: spec.to_string() },
            format!("expected a usable network plugin, found none: {error}"),
            "check CCL_NET_PLUGIN and LD_LIBRARY_PATH; `ccl doctor` lists the candidates",
        )
    })
}

/// Before the name of a network that is to have faults.
const FAULT: &str = "fault:";
/// Used where they are installed and nothing else is asked for: ours, then NCCL's.
const DEFAULT_PLUGINS: &str = "libccl-net.so,libnccl-net.so";
