//! srun.
//!
//! A batch script and an interactive shell carry SLURM_PROCID=0 and SLURM_NTASKS too, although they are no tasks of
//! a step: a program started there without srun would take itself for rank 0 of many and wait for ever. Only
//! the variables of a step count, and Slurm's own steps (batch, interactive) are none.

use ccl_plan::Rank;

use crate::config::{Config, Endpoint};
use crate::discover::launcher::nodelist::{first_host, tasks_on_node};
use crate::discover::launcher::vars::{Vars, missing};
use crate::discover::launcher::{Job, Launcher, Meeting, StoreHost};
use crate::error::Result;

/// Whether this process is a task of a step that srun made.
pub(super) fn is_step(vars: &Vars) -> bool {
    let step = vars.text("SLURM_STEP_ID").or_else(|| vars.text("SLURM_STEPID"));
    step.and_then(|step| step.parse::<u32>().ok()).is_some_and(|step| step < FIRST_RESERVED_STEP)
        && vars.contains("SLURM_STEP_NUM_TASKS")
}

pub(super) fn read(vars: &Vars, _: &Config) -> Result<Option<Job>> {
    if !is_step(vars) {
        return Ok(None);
    }
    let required = |name| vars.number::<u32>(name)?.ok_or_else(|| missing(name, "SLURM_STEP_ID"));
    let node = vars.number("SLURM_NODEID")?.unwrap_or(0);
    let tasks = vars.text("SLURM_STEP_TASKS_PER_NODE").or_else(|| vars.text("SLURM_TASKS_PER_NODE"));
    Ok(Some(Job {
        launcher: Launcher::Slurm,
        rank: Rank(required("SLURM_PROCID")?),
        nranks: required("SLURM_STEP_NUM_TASKS")?,
        local_rank: vars.number("SLURM_LOCALID")?,
        local_nranks: tasks.and_then(|tasks| tasks_on_node(tasks, node)),
        meeting: meeting(vars)?,
    }))
}

/// Rank 0 is on the first node of the step, and every task can work out the same port.
fn meeting(vars: &Vars) -> Result<Meeting> {
    let nodes = vars.text("SLURM_STEP_NODELIST").or_else(|| vars.text("SLURM_JOB_NODELIST"));
    let Some(host) = nodes.and_then(first_host) else { return Ok(Meeting::Nowhere) };
    let part = |name| vars.number::<u32>(name).map(Option::unwrap_or_default);
    let (job, step) = (part("SLURM_JOB_ID")?, part("SLURM_STEP_ID")?);
    Ok(Meeting::Tcp {
        endpoint: Endpoint { host, port: reserved_port(vars).unwrap_or_else(|| derived_port(job, step)) },
        host: StoreHost::RankZero,
        job: format!("slurm-{job}.{step}"),
    })
}

/// The first port that Slurm reserved for the step, if the site has it do so.
fn reserved_port(vars: &Vars) -> Option<u16> {
    let ports = vars.text("SLURM_STEP_RESV_PORTS")?;
    ports.split(['-', ',']).next()?.parse().ok()
}

/// A port below those that the system gives to outgoing connections. Steps of one job that run at the same
/// time get different ones.
fn derived_port(job: u32, step: u32) -> u16 {
    let spread = job.wrapping_mul(STEPS_APART).wrapping_add(step) % PORT_COUNT;
    FIRST_PORT + u16::try_from(spread).unwrap_or(0)
}

/// From here on Slurm numbers its own steps.
const FIRST_RESERVED_STEP: u32 = 0xFFFF_FFF0;

const FIRST_PORT: u16 = 15_000;

const PORT_COUNT: u32 = 16_000;

/// A prime, so that neighbouring jobs are not neighbouring ports.
const STEPS_APART: u32 = 31;
