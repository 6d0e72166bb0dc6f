//! What the launcher says about this process: its rank, how many there are, and where they can meet.
//!
//! The first of these that speaks completely is believed; the others are not asked:
//!
//! 1. the settings `CCL_RANK` and `CCL_NRANKS`,
//! 2. torchrun and whatever sets its variables (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`),
//! 3. Open MPI, 4. Hydra (MPICH, Intel MPI) and others that speak PMI, 5. MVAPICH, 6. LSF's jsrun, 7. Flux,
//! 8. Slurm's srun.
//!
//! The order is from the inside out: torchrun runs under mpirun, mpirun under Slurm, hardly ever the
//! other way round. If none speaks completely but one does in part, that is an error that
//! names the missing variable. If none speaks at all, the process is alone: rank 0 of 1.
//!
//! `CCL_LOCAL_RANK` and `CCL_LOCAL_NRANKS` override what the launcher says of the node.

mod nodelist;
mod slurm;
mod vars;

use std::env;
use std::fmt;

use ccl_plan::Rank;

use crate::config::{Config, Endpoint, Kind};
use crate::discover::launcher::vars::Names;
use crate::error::{Error, Result};

pub use vars::Vars;

/// This process's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Who says so.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: Rank,
    /// The number of ranks.
    pub nranks: u32,
    /// This process's rank among those on its node, if known.
    pub local_rank: Option<u32>,
    /// The number of ranks on this node, if known.
    pub local_nranks: Option<u32>,
    /// Where the ranks can meet.
    pub meeting: Meeting,
}

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Somebody who set `CCL_RANK` and `CCL_NRANKS`.
    Settings,
    /// torchrun, or somebody who sets its variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Hydra, the launcher of MPICH and Intel MPI, or another that speaks PMI.
    Hydra,
    /// MVAPICH's launcher.
    Mvapich,
    /// LSF's jsrun.
    Jsrun,
    /// Flux.
    Flux,
    /// Slurm's srun.
    Slurm,
    /// Nobody: this process is alone.
    Alone,
}

/// Where the ranks of a job can exchange a unique id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Nowhere that the launcher offers.
    Nowhere,
    /// A store that speaks the protocol of torch's TCPStore.
    Tcp {
        /// Where it listens.
        endpoint: Endpoint,
        /// Who hosts it.
        host: StoreHost,
        /// What tells this job from others that use the same store.
        job: String,
    },
    /// The launcher's PMI-1 connection.
    Pmi {
        /// The descriptor that the process inherited.
        descriptor: i32,
    },
    /// On one node, under a name made from the job's.
    Node {
        /// What tells this job from others on the node.
        job: String,
    },
}

/// Who hosts a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The launcher, before the ranks started.
    Launcher,
    /// Rank 0, if nobody listens there yet.
    RankZero,
}

impl Job {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// As [`Job::from_vars`].
    pub fn discover(config: &Config) -> Result<Job> {
        let vars = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Job::from_vars(&vars.collect(), config)
    }

    /// Reads an environment.
    ///
    /// # Errors
    /// A launcher spoke only in part, or what it said makes no sense. The error names the variable.
    pub fn from_vars(vars: &Vars, config: &Config) -> Result<Job> {
        let mut first_error = None;
        for read in READERS {
            match read(vars, config) {
                Ok(Some(job)) => return job.with_settings(config).checked(),
                Ok(None) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or_else(|| Job::alone().with_settings(config).checked(), Err)
    }

    /// Whether all ranks are on this node, as far as the launcher says.
    pub fn is_on_one_node(&self) -> bool {
        self.local_nranks == Some(self.nranks)
    }

    fn alone() -> Job {
        Job {
            launcher: Launcher::Alone,
            rank: Rank(0),
            nranks: 1,
            local_rank: Some(0),
            local_nranks: Some(1),
            meeting: Meeting::Nowhere,
        }
    }

    fn with_settings(mut self, config: &Config) -> Job {
        self.local_rank = config.local_rank().or(self.local_rank);
        self.local_nranks = config.local_nranks().or(self.local_nranks);
        self
    }

    fn checked(self) -> Result<Job> {
        let refuse = |expected: &str, found: String| {
            let cause = format!("expected {expected}, found {found}, from {}", self.launcher);
            Err(Error::usage(cause, "ranks count from 0; correct the launcher's variables"))
        };
        if self.rank.0 >= self.nranks {
            return refuse(
                "a rank below the number of ranks",
                format!("rank {} of {}", self.rank, self.nranks),
            );
        }
        match (self.local_rank, self.local_nranks) {
            (Some(rank), Some(count)) if rank >= count => refuse(
                "a local rank below the number of ranks on the node",
                format!("local rank {rank} of {count}"),
            ),
            (_, Some(count)) if count > self.nranks => {
                refuse("no more ranks on the node than in all", format!("{count} of {}", self.nranks))
            }
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Settings => "CCL_RANK and CCL_NRANKS",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Hydra => "Hydra (MPICH, Intel MPI)",
            Launcher::Mvapich => "MVAPICH",
            Launcher::Jsrun => "jsrun",
            Launcher::Flux => "Flux",
            Launcher::Slurm => "srun",
            Launcher::Alone => "nobody",
        })
    }
}

type Reader = fn(&Vars, &Config) -> Result<Option<Job>>;

fn settings(vars: &Vars, config: &Config) -> Result<Option<Job>> {
    let (rank, nranks) = match (config.rank(), config.nranks()) {
        (Some(rank), Some(nranks)) => (rank, nranks),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(vars::missing("CCL_NRANKS", "CCL_RANK")),
        (None, Some(_)) => return Err(vars::missing("CCL_RANK", "CCL_NRANKS")),
    };
    let meeting = match vars.contains("MASTER_ADDR") && vars.contains("MASTER_PORT") {
        true => torch_store(vars)?,
        false => Meeting::Nowhere,
    };
    Ok(Some(Job {
        launcher: Launcher::Settings,
        rank: Rank(rank),
        nranks,
        local_rank: None,
        local_nranks: None,
        meeting,
    }))
}

fn torchrun(vars: &Vars, config: &Config) -> Result<Option<Job>> {
    let names = Names {
        rank: "RANK",
        nranks: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_nranks: "LOCAL_WORLD_SIZE",
    };
    let Some(job) = names.read(vars, Launcher::Torchrun)? else { return Ok(None) };
    let met_otherwise = job.nranks == 1 || config.comm_id().is_some() || config.store() != "env";
    let offered = vars.contains("MASTER_ADDR") || vars.contains("MASTER_PORT");
    let meeting = if met_otherwise && !offered { Meeting::Nowhere } else { torch_store(vars)? };
    Ok(Some(Job { meeting, ..job }))
}

/// The store at `MASTER_ADDR` and `MASTER_PORT`. A restart by torchrun is another job in the same store.
fn torch_store(vars: &Vars) -> Result<Meeting> {
    let host = vars.text("MASTER_ADDR").ok_or_else(|| vars::missing("MASTER_ADDR", "RANK and WORLD_SIZE"))?;
    let port = vars.number("MASTER_PORT")?.ok_or_else(|| vars::missing("MASTER_PORT", "MASTER_ADDR"))?;
    let agent = vars.text("TORCHELASTIC_USE_AGENT_STORE").and_then(bool::parse).unwrap_or(false);
    let run = vars.text("TORCHELASTIC_RUN_ID").unwrap_or("none");
    let restart = vars.text("TORCHELASTIC_RESTART_COUNT").unwrap_or("0");
    Ok(Meeting::Tcp {
        endpoint: Endpoint { host: host.to_owned(), port },
        host: if agent { StoreHost::Launcher } else { StoreHost::RankZero },
        job: format!("{run}/{restart}"),
    })
}

fn open_mpi(vars: &Vars, _: &Config) -> Result<Option<Job>> {
    let names = Names {
        rank: "OMPI_COMM_WORLD_RANK",
        nranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_nranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
    };
    let Some(job) = names.read(vars, Launcher::OpenMpi)? else { return Ok(None) };
    let identity: Vec<_> = OPEN_MPI_JOB.iter().filter_map(|name| vars.text(name)).collect();
    let meeting = match job.is_on_one_node() && !identity.is_empty() {
        true => Meeting::Node { job: identity.join(" ") },
        false => Meeting::Nowhere,
    };
    Ok(Some(Job { meeting, ..job }))
}

fn hydra(vars: &Vars, _: &Config) -> Result<Option<Job>> {
    let own_locals = vars.contains("MPI_LOCALRANKID");
    if slurm::is_step(vars) && !own_locals {
        // srun's own PMI, which may speak PMI-2 on the descriptor; srun's variables say as much.
        return Ok(None);
    }
    let names = Names {
        rank: "PMI_RANK",
        nranks: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_nranks: "MPI_LOCALNRANKS",
    };
    let Some(job) = names.read(vars, Launcher::Hydra)? else { return Ok(None) };
    let meeting = match vars.number("PMI_FD")? {
        Some(descriptor) => Meeting::Pmi { descriptor },
        None => Meeting::Nowhere,
    };
    Ok(Some(Job { meeting, ..job }))
}

fn mvapich(vars: &Vars, _: &Config) -> Result<Option<Job>> {
    Names {
        rank: "MV2_COMM_WORLD_RANK",
        nranks: "MV2_COMM_WORLD_SIZE",
        local_rank: "MV2_COMM_WORLD_LOCAL_RANK",
        local_nranks: "MV2_COMM_WORLD_LOCAL_SIZE",
    }
    .read(vars, Launcher::Mvapich)
}

fn jsrun(vars: &Vars, _: &Config) -> Result<Option<Job>> {
    Names {
        rank: "JSM_NAMESPACE_RANK",
        nranks: "JSM_NAMESPACE_SIZE",
        local_rank: "JSM_NAMESPACE_LOCAL_RANK",
        local_nranks: "JSM_NAMESPACE_LOCAL_SIZE",
    }
    .read(vars, Launcher::Jsrun)
}

fn flux(vars: &Vars, _: &Config) -> Result<Option<Job>> {
    Names {
        rank: "FLUX_TASK_RANK",
        nranks: "FLUX_JOB_SIZE",
        local_rank: "FLUX_TASK_LOCAL_ID",
        local_nranks: "",
    }
    .read(vars, Launcher::Flux)
}

/// Each is the same for all ranks of a job on a node; which are set depends on the version. The last is drawn at
/// random.
const OPEN_MPI_JOB: [&str; 4] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_hnp_uri",
    "OMPI_MCA_orte_precondition_transports",
];

const READERS: [Reader; 8] = [settings, torchrun, open_mpi, hydra, mvapich, jsrun, flux, slurm::read];

#[cfg(test)]
mod tests;
