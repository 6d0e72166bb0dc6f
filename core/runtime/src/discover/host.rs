//! This host and this process: identity, namespaces, shared memory, processors.

use std::fmt;
use std::fs;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;
use std::thread;

use rustix::fs::statvfs;
use rustix::system::uname;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::config::Config;

/// What a rank tells the others about where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Equal for processes on the same node, as far as settings and the system say.
    pub id: HostId,
    /// The host's name, for people.
    pub name: String,
    /// This process, in its own namespace.
    pub pid: u32,
    /// The namespace of process numbers: processes of one host with different ones do not see each other.
    pub pid_namespace: Option<u64>,
    /// The network namespace: abstract Unix sockets and loopback do not cross it.
    pub net_namespace: Option<u64>,
    /// The size and free space of `/dev/shm`, if it is there.
    pub dev_shm: Option<DevShm>,
    /// The processors this process may use.
    pub cpus: Vec<usize>,
    /// How many threads it is worth running, cgroup limits included.
    pub parallelism: usize,
}

/// A node's identity: a digest of its name and of what the kernel drew at boot, or of `CCL_HOSTID`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

/// How large `/dev/shm` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevShm {
    /// Its size.
    pub size_bytes: u64,
    /// What is free of it.
    pub free_bytes: u64,
}

impl Host {
    /// Asks the system. What it does not tell is left open; nothing fails.
    pub fn discover(config: &Config) -> Host {
        let name = host_name();
        Host {
            id: identity(config.hostid(), &name, &boot_id()),
            name,
            pid: process::id(),
            pid_namespace: namespace("pid"),
            net_namespace: namespace("net"),
            dev_shm: dev_shm(Path::new("/dev/shm")),
            cpus: allowed_cpus(),
            parallelism: thread::available_parallelism().map_or(1, NonZero::get),
        }
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The host's name, as `hostname` prints it.
pub fn host_name() -> String {
    uname().nodename().to_string_lossy().into_owned()
}

/// The processor's name and how many this machine has, whether or not this process may use them; parts that the
/// system does not tell are left out.
pub fn processors() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_owned());
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    let name = info.lines().find(|line| line.starts_with("model name")).and_then(value);
    format!("{} x{count}", name.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

fn identity(own: Option<&str>, name: &str, boot_id: &str) -> HostId {
    let mut hasher = blake3::Hasher::new_derive_key("ccl identity of a node, version 1");
    match own {
        Some(own) => hasher.update(format!("set {own}").as_bytes()),
        None => hasher.update(format!("found {name} {boot_id}").as_bytes()),
    };
    let mut eight = [0; 8];
    hasher.finalize_xof().fill(&mut eight);
    HostId(u64::from_le_bytes(eight))
}

/// What the kernel drew at boot: two hosts of the same name differ in it.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn namespace(kind: &str) -> Option<u64> {
    fs::metadata(format!("/proc/self/ns/{kind}")).ok().map(|metadata| metadata.ino())
}

fn dev_shm(path: &Path) -> Option<DevShm> {
    let space = statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Some(DevShm { size_bytes: bytes(space.f_blocks), free_bytes: bytes(space.f_bavail) })
}

fn allowed_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).ok();
    allowed.map_or(Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_described() {
        let host = Host::discover(&Config::default());
        assert_eq!(host, Host { dev_shm: host.dev_shm, ..Host::discover(&Config::default()) });
        assert!(!host.name.is_empty());
        assert!(host.pid_namespace.is_some() && host.net_namespace.is_some());
        assert!(!host.cpus.is_empty() && host.parallelism >= 1);
    }

    #[test]
    fn identity_follows_the_setting_or_name_and_boot() {
        let found = identity(None, "node", "boot");
        assert_eq!(found, identity(None, "node", "boot"));
        assert_ne!(found, identity(None, "node", "another boot"));
        assert_ne!(found, identity(None, "node2", "boot"));
        assert_eq!(identity(Some("a"), "node", "boot"), identity(Some("a"), "node2", "boot2"));
        assert_ne!(identity(Some("a"), "node", "boot"), identity(Some("b"), "node", "boot"));
    }

    #[test]
    fn a_missing_dev_shm_is_no_error() {
        assert_eq!(dev_shm(Path::new("/nonexistent")), None);
    }
}
