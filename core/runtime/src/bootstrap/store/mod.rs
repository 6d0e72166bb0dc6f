//! The store: how a unique id gets from rank 0 to the others when the program does not carry it.
//!
//! [`exchange_id`] takes the first of these ways that applies:
//!
//! 1. `CCL_COMM_ID=HOST:PORT`: rank 0 hosts a store there. With several addresses, separated by commas, each is that of
//!    the first rank of a share of the ranks; those exchange ids among themselves and give all to their shares.
//! 2. `CCL_STORE`, if it is not `env`: `tcp:HOST:PORT` (a store that is there, or else rank 0 hosts it), `pmi`, `local`,
//!    `file:DIRECTORY`.
//! 3. What the launcher offers, see [`Meeting`](crate::discover::launcher::Meeting): the agent's store under
//!    torchrun; `MASTER_ADDR:MASTER_PORT` under what sets torch's variables, and a port made from the
//!    job's number on the first node under srun, where rank 0 hosts the store; PMI under Hydra; a
//!    socket named after the job under Open MPI on one node.
//!
//! If none applies, that is an error that says what to set. Every way ends by the deadline, with an error
//! that says which key was awaited, from whom, and what happened last.
//!
//! Ranks meet in the order of their calls: the first exchange of every rank is one, the second another.
//! The id travels in clear unless `CCL_SECRET` is set, which seals it. Nothing stays behind: no file, no thread, no
//! socket, except the key in a store that others host.

mod client;
mod directory;
mod link;
mod message;
mod pmi;
mod route;
mod server;
mod several;
mod wait;
mod wire;

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ccl_plan::Rank;

pub(crate) use crate::bootstrap::store::message::Sealer;
use crate::bootstrap::store::message::{open, pack};
use crate::bootstrap::store::route::Route;
use crate::bootstrap::store::several::Places;
use crate::config::Config;
use crate::discover::launcher::Job;
use crate::error::{Error, Result};

pub use client::Client;
pub use directory::Directory;
pub use link::Address;
pub use pmi::Pmi;
pub use server::Server;

/// The bytes of a unique id.
pub const ID_BYTES: usize = 128;

/// Keys and values that all ranks of a job can see.
///
/// Rank 0 sets, the others get; each key is set once and got once by each other rank. A store that lives in
/// rank 0's process returns from `set` when all others have the value.
pub trait Store {
    /// Makes `value` known under `key`.
    ///
    /// # Errors
    /// The store cannot be reached or kept up until `deadline`, or ranks are missing by then.
    fn set(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<()>;

    /// Waits for the value of `key`.
    ///
    /// # Errors
    /// It is not there by `deadline`.
    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>>;
}

/// The exchanges of one process: a count, so that several communicators of a job do not meet in each other's place.
#[derive(Debug, Default)]
pub struct Exchanges {
    generation: u64,
    /// PMI's name for the job, once its connection is used up.
    pmi_job: Option<String>,
}

impl Exchanges {
    /// None yet.
    pub const fn new() -> Exchanges {
        Exchanges { generation: 0, pmi_job: None }
    }

    /// As [`exchange_ids`], counted by this value.
    ///
    /// # Errors
    /// As [`exchange_ids`].
    pub fn exchange_all(
        &mut self,
        job: &Job,
        config: &Config,
        deadline: Instant,
        make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
    ) -> Result<Vec<[u8; ID_BYTES]>> {
        let endpoints = match config.comm_id() {
            Some(endpoints @ [_, _, ..]) if job.nranks > 1 => endpoints,
            _ => return self.exchange(job, config, deadline, make_id).map(|id| vec![id]),
        };
        let generation = self.generation;
        self.generation += 1;
        let key = format!("ccl/{}/id/{generation}", route::identity(job));
        let sealer = Sealer::new(config.secret(), &key);
        tracing::info!(rank = job.rank.0, "exchanging {} unique ids {generation}", endpoints.len());
        Places::new(endpoints, job, &key, &sealer)
            .and_then(|places| places.exchange(deadline, make_id))
            .map_err(|error| error.on(job.rank).during("exchange of the unique ids"))
    }

    /// As [`exchange_id`], counted by this value.
    ///
    /// # Errors
    /// As [`exchange_id`].
    pub fn exchange(
        &mut self,
        job: &Job,
        config: &Config,
        deadline: Instant,
        make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
    ) -> Result<[u8; ID_BYTES]> {
        let generation = self.generation;
        self.generation += 1;
        if job.nranks == 1 {
            return make_id();
        }
        let route = Route::choose(job, config, self.pmi_job.as_deref())?;
        tracing::info!(rank = job.rank.0, "exchanging unique id {generation} through {route}");
        let key = format!("ccl/{}/id/{generation}", route.job());
        let sealer = Sealer::new(config.secret(), &key);
        let mut store = route.open(job, &key, deadline)?;
        let id = match job.rank {
            Rank(0) => publish(store.as_mut(), &key, &sealer, deadline, make_id),
            _ => fetch(store.as_mut(), &key, &sealer, deadline),
        };
        drop(store);
        if let Route::Pmi(pmi) = &route {
            self.pmi_job = pmi.used_up();
        }
        id.map_err(|error| error.on(job.rank).during("exchange of the unique id"))
    }
}

/// Gives every rank the id that rank 0 makes. Blocks until this rank has it, and on rank 0, where it hosts
/// the store, until the others have it; at most until `deadline`.
///
/// All ranks of the job call it the same number of times. `make_id` is called on rank 0 only.
///
/// # Errors
/// No way to meet applies, ranks did not come, or `make_id` failed: then every rank has that error.
pub fn exchange_id(
    job: &Job,
    config: &Config,
    deadline: Instant,
    make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
) -> Result<[u8; ID_BYTES]> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner).exchange(job, config, deadline, make_id)
}

/// As [`exchange_id`], with an id for each address of `CCL_COMM_ID`, in their order; one if it names none or one.
///
/// `make_id` is called on the first rank of each share.
///
/// # Errors
/// As [`exchange_id`]; more addresses than ranks, or one twice.
pub fn exchange_ids(
    job: &Job,
    config: &Config,
    deadline: Instant,
    make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
) -> Result<Vec<[u8; ID_BYTES]>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner).exchange_all(job, config, deadline, make_id)
}

/// Rank 0's part. A failure to make the id is published too, so that the others do not wait for nothing.
fn publish(
    store: &mut dyn Store,
    key: &str,
    sealer: &Sealer,
    deadline: Instant,
    make_id: impl FnOnce() -> Result<[u8; ID_BYTES]>,
) -> Result<[u8; ID_BYTES]> {
    let made = make_id();
    let published = store.set(key, &sealer.seal(&pack(&made))?, deadline);
    let id = made?;
    published.map(|()| id)
}

fn fetch(store: &mut dyn Store, key: &str, sealer: &Sealer, deadline: Instant) -> Result<[u8; ID_BYTES]> {
    let value = sealer.open(&store.get(key, deadline)?)?;
    open(&value).map_err(|error: Error| error.with_peer(Rank(0)))
}

/// What is counted belongs to the process: the keys it used in stores that outlive any object, and the one PMI
/// connection that it inherited.
static PROCESS: Mutex<Exchanges> = Mutex::new(Exchanges::new());

#[cfg(test)]
mod tests;
