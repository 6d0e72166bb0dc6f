//! Joining: how ranks that know nothing but a unique id find each other.
//!
//! Whoever makes the id starts the root, [`Root::start`], and hands the id to all ranks by any means.
//! Each rank calls [`join`] with it; when all n are in, each holds the others' infos and a
//! [`Control`] connection for the rest of the communicator's life.
//!
//! ```
//! use ccl::Rank;
//! use ccl::bootstrap::{BootstrapSettings, Root, join};
//!
//! let settings = BootstrapSettings::default();
//! let (id, _root) = Root::start(&settings)?;
//! std::thread::scope(|scope| {
//!     for rank in 0..2 {
//!         let (id, settings) = (&id, &settings);
//!         scope.spawn(move || {
//!             let (control, infos) = join(id, Rank(rank), 2, vec![rank as u8], settings).expect("both join");
//!             assert_eq!(infos, [vec![0], vec![1]]);
//!             control.barrier().expect("both are here");
//!         });
//!     }
//! });
//! # Ok::<(), ccl::Error>(())
//! ```
//!
//! All ranks connect to the root, a star; each connection proves both sides' knowledge of the id's
//! secret before anything else is parsed. A missed deadline names who is missing and who is there.
//! It does not move data, and does not encrypt: infos travel in clear.
//!
//! # Several roots
//!
//! With k ids, see `join_several`, each root has the connections of n/k ranks: shares are contiguous, and the
//! first n mod k of them have one rank more. One root, the *head*, does what the only root would. Each of the
//! others is a *deputy*: it has one connection to the head, makes one message of what its ranks say at the same time,
//! and passes on to them what it is told once. While ranks join, the head takes 3 messages from each deputy
//! and sends it 3, handshake included, whatever n is. ADR 0022 says why it is so.
//!
//! An abort, a death or a diagnosis goes through the head, which names one cause to all. When the process of a
//! root ends, a rank in it is named everywhere, as with one root. The process that makes an id should be that of a rank
//! of the share: then the others hear that the rank leaves before its process ends.

pub(crate) mod auth;
pub(crate) mod between;
pub(crate) mod branches;
pub(crate) mod deputy;
pub(crate) mod enter;
pub(crate) mod head;
mod id;
pub(crate) mod infos;
pub(crate) mod joiner;
pub(crate) mod machine;
pub(crate) mod process;
mod root;
pub(crate) mod roots;
pub(crate) mod station;
pub mod store;
pub(crate) mod tcp;
pub(crate) mod tree;
pub(crate) mod wire;
pub(crate) mod words;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ccl_plan::Rank;

pub use id::UniqueId;
pub use root::{Root, RootHandle};

use crate::bootstrap::infos::Infos;
use crate::config::Config;
use crate::control::Control;
use crate::error::{Error, Result};

/// How to join, and how to keep the control connection.
#[derive(Clone, Debug)]
pub struct BootstrapSettings {
    /// How long joining may take.
    pub deadline: Duration,
    /// How long each round on the control connection may take; as long as joining if absent.
    pub round_deadline: Option<Duration>,
    /// Ports the root may listen at; any if absent.
    pub port_range: Option<RangeInclusive<u16>>,
    /// The address the root listens at; if absent, the one from which this host reaches others.
    pub bind: Option<IpAddr>,
    /// Pause between signs of life on the control connection; zero for none.
    pub heartbeat: Duration,
    /// How long sent bytes may stay without acknowledgement before the path counts as dead.
    pub link_timeout: Duration,
    /// How long a connection may take to prove that it knows the secret.
    pub stranger_deadline: Duration,
    /// Connections without proof at one time; the oldest gives way.
    pub strangers: usize,
    /// How long the root waits for the first rank.
    pub expiry: Duration,
}

impl Default for BootstrapSettings {
    fn default() -> BootstrapSettings {
        BootstrapSettings {
            deadline: Duration::from_secs(60),
            round_deadline: None,
            port_range: None,
            bind: None,
            heartbeat: Duration::from_secs(5),
            link_timeout: Duration::from_secs(30),
            stranger_deadline: Duration::from_secs(10),
            strangers: 512,
            expiry: Duration::from_secs(1800),
        }
    }
}

impl BootstrapSettings {
    /// What `config` says, with the root at `bind`, the address of the chosen interface.
    pub fn from_config(config: &Config, bind: Option<IpAddr>) -> BootstrapSettings {
        BootstrapSettings {
            deadline: config.init_timeout(),
            round_deadline: Some(config.timeout()),
            port_range: config.port_range(),
            bind,
            heartbeat: config.heartbeat(),
            ..BootstrapSettings::default()
        }
    }

    /// How long a round may take.
    pub(crate) fn patience(&self) -> Duration {
        self.round_deadline.unwrap_or(self.deadline).min(LONGEST)
    }

    /// The same with every time short enough to be added to others.
    pub(crate) fn bounded(&self) -> BootstrapSettings {
        let bounded = |time: Duration| time.min(LONGEST);
        BootstrapSettings {
            deadline: bounded(self.deadline),
            round_deadline: self.round_deadline.map(bounded),
            heartbeat: bounded(self.heartbeat),
            link_timeout: bounded(self.link_timeout),
            stranger_deadline: bounded(self.stranger_deadline),
            expiry: bounded(self.expiry),
            ..self.clone()
        }
    }
}

/// Joins as `rank` of `n` the communicator of `id`; every rank gets every rank's `info`, by rank.
///
/// Blocks until all are in, at most half a second longer than `settings.deadline`. With one rank
/// no socket is opened and no thread started. `info` has at most 1 MiB, and all together 32 MiB.
///
/// # Errors
///
/// Names the missing ranks and those present; the rank that failed, with its reason; ranks that
/// disagree on n or the version, or claim the same rank; or why the root could not be reached.
pub fn join(
    id: &UniqueId,
    rank: Rank,
    n: u32,
    info: Vec<u8>,
    settings: &BootstrapSettings,
) -> Result<(Control, Vec<Bytes>)> {
    let (control, infos) = join_several(std::slice::from_ref(id), rank, n, info, settings)?;
    Ok((control, infos.to_vec()))
}

/// As [`join`], with several unique ids: each root takes its share of the ranks, see the
/// [module](self#several-roots). All ranks give the same ids in the same order.
///
/// # Errors
///
/// As [`join`]; no id, more than ranks, or one twice; ranks that were given others, or in another order.
pub(crate) fn join_several(
    ids: &[UniqueId],
    rank: Rank,
    n: u32,
    info: Vec<u8>,
    settings: &BootstrapSettings,
) -> Result<(Control, Infos)> {
    if rank.0 >= n {
        let cause = format!("expected a rank below n = {n}, found {rank}");
        return Err(Error::usage(cause, "ranks count from 0 to n - 1"));
    }
    if info.len() > wire::INFO_BYTES {
        let cause = format!("expected an info of at most {} bytes, found {}", wire::INFO_BYTES, info.len());
        return Err(Error::usage(cause, "exchange long data through the communicator itself"));
    }
    if n == 1 {
        roots::Ids::new(ids, n)?;
        return Ok((Control::alone(settings), Infos::from_iter([info])));
    }
    let (settings, started) = (&settings.bounded(), Instant::now());
    let purpose = joiner::Purpose::Join { process: process::Process::this(), info };
    match enter::enter(ids, (rank, n), purpose, settings, started)? {
        enter::Entered::In(connection, entry) => Control::joined((rank, n), *connection, entry, settings),
        enter::Entered::Announced => Err(Error::bug("joining ended as the announcement of a failure")),
    }
}

/// Instead of joining: makes all ranks of `id` give up joining, naming this rank and `reason`.
///
/// Blocks until the root knows, at most as long as joining would.
///
/// # Errors
///
/// Why the root could not be reached; the other ranks then learn of this rank by their deadline.
pub fn fail(id: &UniqueId, rank: Rank, n: u32, reason: &str, settings: &BootstrapSettings) -> Result<()> {
    fail_several(std::slice::from_ref(id), rank, n, reason, settings)
}

/// As [`fail`], instead of `join_several`.
///
/// # Errors
///
/// As [`fail`].
pub fn fail_several(
    ids: &[UniqueId],
    rank: Rank,
    n: u32,
    reason: &str,
    settings: &BootstrapSettings,
) -> Result<()> {
    if n <= 1 {
        return Ok(());
    }
    let purpose = joiner::Purpose::Fail { reason: reason.to_owned() };
    enter::enter(ids, (rank, n), purpose, &settings.bounded(), Instant::now()).map(|_| ())
}

const LONGEST: Duration = Duration::from_secs(3600 * 24 * 30);

#[cfg(test)]
mod several_sim;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
