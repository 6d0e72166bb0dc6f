//! Logs: `tracing` events, and a writer for programs that have no subscriber of their own.
//!
//! The library only says `tracing::info!(…)`. If the program has a subscriber, the events go there and this module
//! writes nothing. If it has none, [`install`] sets one that writes lines shaped as NCCL's users know them,
//!
//! ```text
//! host:pid:tid [rank] CCL INFO text
//! ```
//!
//! to standard error or to `CCL_DEBUG_FILE`, never to standard output, for events of ccl's own crates only.
//! A program that sets a subscriber should do so before its first communicator; `CCL_DEBUG=NONE`
//! keeps this module from installing one.
//!
//! An event's subsystem follows from the module that says it. Its rank is its own field `rank`, or that of
//! the span it is in.

mod line;
mod writer;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

use tracing::dispatcher::{self, Dispatch};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;

use crate::config::{Config, Level, Source, Subsystems};
use crate::discover::host::host_name;
use crate::error::{Error, Result};
use crate::log::writer::Writer;

/// Whose subscriber takes the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Ours, installed now or earlier.
    Ccl,
    /// The program's.
    Program,
    /// Nobody's: `CCL_DEBUG=NONE`.
    Nobody,
}

/// Sees to it that events have a receiver, and tells it about the settings. Call it for each communicator; only the
/// first call installs.
///
/// # Errors
/// `CCL_DEBUG_FILE` cannot be created.
pub fn install(config: &Config) -> Result<Receiver> {
    let receiver = match receiver() {
        Receiver::Nobody if config.debug() > Level::None => install_writer(config)?,
        receiver => receiver,
    };
    announce(config);
    Ok(receiver)
}

/// Changes how much is logged from now on, and about what. Any thread may call it.
///
/// Returns whether it had an effect: the program's own subscriber has its own filter.
pub fn change(level: Level, subsystems: Subsystems) -> bool {
    let changed = with_writer(|writer| writer.set(level, subsystems)).is_some();
    if changed {
        // Callsites and the macros' quick check remember what was enabled.
        tracing::callsite::rebuild_interest_cache();
    }
    changed
}

/// Whose subscriber takes the events now.
pub fn receiver() -> Receiver {
    match (with_writer(|_| ()), dispatcher::has_been_set()) {
        (Some(()), _) => Receiver::Ccl,
        (None, true) => Receiver::Program,
        (None, false) => Receiver::Nobody,
    }
}

fn install_writer(config: &Config) -> Result<Receiver> {
    let sink: Box<dyn Write + Send> = match config.debug_file() {
        Some(pattern) => Box::new(create(&file_name(pattern, &host_name(), process::id()))?),
        None => Box::new(io::stderr()),
    };
    let writer = Writer::new(config.debug(), config.debug_subsys(), sink);
    // Another thread may have been first; then its subscriber stays.
    match dispatcher::set_global_default(dispatch(writer)) {
        Ok(()) => {
            with_writer(Writer::greet);
            Ok(Receiver::Ccl)
        }
        Err(_) => Ok(receiver()),
    }
}

fn dispatch(writer: Writer) -> Dispatch {
    Dispatch::new(Registry::default().with(writer))
}

fn with_writer<T>(visit: impl FnOnce(&Writer) -> T) -> Option<T> {
    let mut visit = Some(visit);
    dispatcher::get_default(|dispatch| {
        let writer = dispatch.downcast_ref::<Writer>()?;
        visit.take().map(|visit| visit(writer))
    })
}

/// Says what became of env plugins, which settings are not at their defaults, and which names are not settings.
fn announce(config: &Config) {
    for candidate in config.env_candidates() {
        tracing::info!(target: "ccl::config", %candidate, "env plugin");
    }
    if let Some(plugin) = config.env() {
        plugin.tell_what_it_said();
    }
    for warning in config.warnings() {
        tracing::warn!(target: "ccl::config", "{warning}");
    }
    for one in config.resolved().iter().filter(|one| one.source != Source::Default) {
        tracing::info!(target: "ccl::config", "{} set by {} to {}.", one.setting.name, one.source, one.value);
    }
    for name in config.ignored() {
        tracing::info!(target: "ccl::config", "{name} has no meaning in ccl.");
    }
}

fn create(path: &Path) -> Result<File> {
    let doing = || format!("create the log file {}", path.display());
    File::create(path).map_err(|error| Error::system(&doing(), error, "correct CCL_DEBUG_FILE"))
}

/// The file that a pattern with `%h` and `%p` names. `%%` is a percent sign.
fn file_name(pattern: &Path, host: &str, pid: u32) -> PathBuf {
    let pattern = pattern.to_string_lossy();
    let mut name = String::new();
    let mut rest = pattern.as_ref();
    while let Some((before, after)) = rest.split_once('%') {
        name.push_str(before);
        let taken = after.chars().next();
        match taken {
            Some('h') => name.push_str(&host.replace(['%', '/'], "-")),
            Some('p') => name.push_str(&pid.to_string()),
            Some('%') | None => name.push('%'),
            Some(other) => name.extend(['%', other]),
        }
        rest = &after[taken.map_or(0, char::len_utf8)..];
    }
    name.push_str(rest);
    name.into()
}

#[cfg(test)]
mod tests;
