//! Choosing how to exchange a unique id.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use ccl_plan::Rank;
use rustix::process::geteuid;

use crate::bootstrap::store::Store;
use crate::bootstrap::store::client::Client;
use crate::bootstrap::store::directory::Directory;
use crate::bootstrap::store::link::Address;
use crate::bootstrap::store::pmi::{Owner, Pmi};
use crate::bootstrap::store::server::Server;
use crate::config::{Config, Endpoint, Kind};
use crate::discover::launcher::{Job, Launcher, Meeting, StoreHost};
use crate::error::{Error, Result};

/// How ranks exchange a unique id.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Through a store at an address.
    Served { address: Address, host: StoreHost, job: String },
    /// Through the launcher's PMI connection.
    Pmi(PmiRoute),
    /// Through a directory.
    Directory { path: PathBuf, job: String },
}

/// The PMI connection, and what it says of the job once it was used.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PmiRoute {
    descriptor: i32,
    job: OnceLock<String>,
}

impl PmiRoute {
    /// PMI's name for the job, if the connection has no more use.
    pub(super) fn used_up(&self) -> Option<String> {
        self.job.get().cloned()
    }
}

impl Route {
    /// Chooses by settings and launcher; `pmi_job` is PMI's name for the job if its connection is used up.
    ///
    /// # Errors
    /// Nothing applies, or `CCL_STORE` asks for what is not there.
    pub(super) fn choose(job: &Job, config: &Config, pmi_job: Option<&str>) -> Result<Route> {
        if let Some([endpoint, ..]) = config.comm_id() {
            return Ok(hosted(endpoint.clone(), identity(job)));
        }
        match config.store().split_once(':').unwrap_or((config.store(), "")) {
            ("env", "") => offered(job, pmi_job),
            ("tcp", rest) => match Endpoint::parse(rest) {
                Some(endpoint) => Ok(hosted(endpoint, identity(job))),
                None => Err(bad_store(config, "`tcp:HOST:PORT`")),
            },
            ("file", path) if !path.is_empty() => {
                Ok(Route::Directory { path: path.into(), job: identity(job) })
            }
            ("local", "") => on_this_node(job),
            ("pmi", "") => match job.meeting {
                Meeting::Pmi { .. } => offered(job, pmi_job),
                _ => Err(bad_store(config, "a launcher that sets PMI_RANK, PMI_SIZE and PMI_FD")),
            },
            _ => Err(bad_store(config, "`env`, `pmi`, `local`, `tcp:HOST:PORT` or `file:DIRECTORY`")),
        }
    }

    /// What tells the job's keys from those of others in the same store.
    pub(super) fn job(&self) -> &str {
        match self {
            Route::Served { job, .. } | Route::Directory { job, .. } => job,
            Route::Pmi(_) => "",
        }
    }

    /// Makes the store ready for this rank; `key` is what it will be used for.
    pub(super) fn open(&self, job: &Job, key: &str, deadline: Instant) -> Result<Box<dyn Store>> {
        match self {
            Route::Served { address, host, .. } => open_served(address.clone().for_key(key), *host, job),
            Route::Directory { path, .. } => Ok(Box::new(Directory::new(path, job.rank, job.nranks))),
            Route::Pmi(pmi) => {
                let owner = Owner::discover();
                let store = Pmi::open(pmi.descriptor, owner, deadline)?;
                if owner == Owner::Ccl {
                    pmi.job.get_or_init(|| store.job().to_owned());
                }
                Ok(Box::new(store))
            }
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Served { address, host: StoreHost::Launcher, .. } => {
                write!(f, "{address}, the launcher's")
            }
            Route::Served { address, host: StoreHost::RankZero, .. } => write!(f, "{address}, rank 0's"),
            Route::Pmi(pmi) => write!(f, "PMI on descriptor {}", pmi.descriptor),
            Route::Directory { path, .. } => write!(f, "the directory {}", path.display()),
        }
    }
}

impl Address {
    /// The address to use for `key`: a port serves all keys, a name on this node only its own.
    fn for_key(self, key: &str) -> Address {
        match self {
            Address::Tcp(endpoint) => Address::Tcp(endpoint),
            Address::Node(name) => {
                let text = format!("{} {name} {key}", geteuid().as_raw());
                Address::Node(format!("ccl-{}", &blake3::hash(text.as_bytes()).to_hex()[..32]))
            }
        }
    }
}

fn open_served(address: Address, host: StoreHost, job: &Job) -> Result<Box<dyn Store>> {
    if job.rank != Rank(0) || host == StoreHost::Launcher {
        return Ok(Box::new(Client::new(address, job.rank)));
    }
    match Server::listen(address.clone(), job.nranks) {
        Ok(server) => Ok(Box::new(server)),
        // Somebody hosts a store there, as torch does in a process that has joined already.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && matches!(address, Address::Tcp(_)) => {
            Ok(Box::new(Client::new(address, job.rank)))
        }
        Err(error) => Err(Error::system(
            &format!("host {address}"),
            error,
            "free the address, or set CCL_COMM_ID to an address and port of rank 0's host",
        )),
    }
}

fn hosted(endpoint: Endpoint, job: String) -> Route {
    Route::Served { address: Address::Tcp(endpoint), host: StoreHost::RankZero, job }
}

/// What the launcher offers.
fn offered(job: &Job, pmi_job: Option<&str>) -> Result<Route> {
    match &job.meeting {
        Meeting::Tcp { endpoint, host, job } => {
            Ok(Route::Served { address: Address::Tcp(endpoint.clone()), host: *host, job: job.clone() })
        }
        Meeting::Node { job } => Ok(named(job)),
        Meeting::Pmi { descriptor } => match pmi_job {
            None => Ok(Route::Pmi(PmiRoute { descriptor: *descriptor, job: OnceLock::new() })),
            Some(name) if job.is_on_one_node() => Ok(named(name)),
            Some(_) => Err(Error::usage(
                "expected one exchange per process through PMI, found a second",
                "split the first communicator, or set CCL_COMM_ID or CCL_STORE=file:DIRECTORY",
            )),
        },
        Meeting::Nowhere => Err(nowhere(job)),
    }
}

fn on_this_node(job: &Job) -> Result<Route> {
    if job.local_nranks.is_some_and(|local| local != job.nranks) {
        let cause = format!(
            "expected all {} ranks on this node, as CCL_STORE=local says, found {}",
            job.nranks,
            job.local_nranks.unwrap_or(0)
        );
        return Err(Error::usage(cause, "set CCL_COMM_ID or CCL_STORE=file:DIRECTORY"));
    }
    Ok(named(&match &job.meeting {
        Meeting::Tcp { job, .. } | Meeting::Node { job } => job.clone(),
        Meeting::Pmi { .. } | Meeting::Nowhere => siblings(),
    }))
}

fn named(job: &str) -> Route {
    Route::Served { address: Address::Node(job.to_owned()), host: StoreHost::RankZero, job: job.to_owned() }
}

/// What the launcher calls the job; nothing if it does not.
pub(super) fn identity(job: &Job) -> String {
    match &job.meeting {
        Meeting::Tcp { job, .. } | Meeting::Node { job } => job.clone(),
        Meeting::Pmi { .. } | Meeting::Nowhere => String::new(),
    }
}

/// What processes started by the same parent have in common: its number and when it started.
fn siblings() -> String {
    let parent = parent_id();
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    // The name, which may hold anything, ends with the last parenthesis; the start is field 22.
    let started = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(19)).unwrap_or("");
    format!("parent {parent} {started}")
}

fn nowhere(job: &Job) -> Error {
    let why = match (job.launcher, job.is_on_one_node()) {
        (Launcher::OpenMpi, false) => "Open MPI offers no store to programs without MPI beyond one node",
        (Launcher::Settings, _) => "CCL_RANK and CCL_NRANKS do not say where",
        _ => "the launcher does not say where",
    };
    let cause = format!("expected a place where {} ranks can meet, found none: {why}", job.nranks);
    Error::usage(
        cause,
        "set CCL_COMM_ID=HOST:PORT with rank 0's host, or CCL_STORE=file:DIRECTORY, or CCL_STORE=local on one node",
    )
}

fn bad_store(config: &Config, expected: &str) -> Error {
    let from = config.find("CCL_STORE").map_or(String::new(), |found| format!(", from {}", found.source));
    let cause = format!("setting CCL_STORE: expected {expected}, found `{}`{from}", config.store());
    Error::usage(cause, "correct the value, or remove it to use what the launcher offers")
}
