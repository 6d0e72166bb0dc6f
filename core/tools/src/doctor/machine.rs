//! Processor, memory, shared memory, limits.

use std::fs;

use ccl::exec::reduce::instruction_set;
use ccl::memory::{Backing, MemoryFile};
use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::ranks::cpus;
use crate::size::format_bytes;

/// What this machine and process have.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![processor(), processors(), memory(), shared_memory()];
    findings.extend([
        limit("open files", Resource::Nofile, Some(LEAST_FILES), "sockets between many ranks need one each"),
        limit("processes", Resource::Nproc, None, "ranks and their threads count"),
        limit("locked memory", Resource::Memlock, None, "only networks that pin memory need it"),
    ]);
    findings
}

fn processor() -> Finding {
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    Finding::ok("machine", "processor", model, format!("reductions use {}", instruction_set()))
}

fn processors() -> Finding {
    let allowed = cpus::allowed().len();
    let online = online_cpus();
    let why = match allowed < online {
        true => format!("of {online}; the rest is not for this process"),
        false => "with more ranks than that, ranks take turns".to_owned(),
    };
    Finding::ok("machine", "CPUs", allowed.to_string(), why)
}

fn memory() -> Finding {
    let kibibytes = |name| field("/proc/meminfo", name)?.split_whitespace().next()?.parse::<u64>().ok();
    let shown = |name| kibibytes(name).map_or("unknown".to_owned(), |kib| format!("{} MiB", kib >> 10));
    let found = format!("{} free of {}", shown("MemAvailable"), shown("MemTotal"));
    Finding::ok("machine", "memory", found, "")
}

/// Whether memory can be shared by descriptor; `/dev/shm` does not matter.
fn shared_memory() -> Finding {
    let tried = MemoryFile::create(Backing::Anonymous).and_then(|file| {
        file.fix_size(TRIAL_BYTES)?;
        file.map(TRIAL_BYTES)
    });
    match tried {
        Ok(_) => Finding::ok("machine", "shared memory", "works", "anonymous; /dev/shm is not needed"),
        Err(error) => Finding::warning("machine", "shared memory", "does not work", error.to_string()),
    }
}

fn limit(what: &'static str, resource: Resource, least: Option<u64>, why: &str) -> Finding {
    let current = getrlimit(resource).current;
    let found = current.map_or("unlimited".to_owned(), |limit| match resource {
        Resource::Memlock => format_bytes(limit),
        _ => limit.to_string(),
    });
    match (current, least) {
        (Some(current), Some(least)) if current < least => {
            Finding::warning("limits", what, found, format!("{why}; raise it to {least} or more"))
        }
        _ => Finding::ok("limits", what, found, why),
    }
}

/// The value of `name: value` in a file of such lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(value)
}

/// Processors that are switched on, in this process's reach or not.
fn online_cpus() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    ccl::discover::cache::processors_in(text.trim()).unwrap_or(0)
}

/// Enough for a job of a few hundred ranks without shared memory.
const LEAST_FILES: u64 = 1024;
const TRIAL_BYTES: usize = 4096;
