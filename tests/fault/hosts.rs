//! Two network namespaces as two hosts with a cable between them, and the ranks in them.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ccl_tests::program;

/// Two hosts; each has an interface `eth0`, and those are connected. Nothing of them outlives the value.
pub(crate) struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// Makes them, or says why that is not possible here.
    pub(crate) fn new() -> Result<Hosts, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // It takes long if it must be built: not while there are namespaces to leave behind.
        program::ccl();
        remove_left_behind();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|which| format!("ccl-{}-{count}{which}", std::process::id()));
        let hosts = Hosts { names };
        for name in &hosts.names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        hosts.connect("eth0")?;
        for (host, address) in ADDRESSES.iter().enumerate() {
            hosts.ip(host, &format!("addr add {address}/24 dev eth0"))?;
        }
        hosts.set_up("eth0")?;
        Ok(hosts)
    }

    /// Connects both by a cable whose ends are both called `interface`; they are down yet.
    pub(crate) fn connect(&self, interface: &str) -> Result<(), String> {
        let [a, b] = &self.names;
        ip(&format!("link add {interface} netns {a} type veth peer name {interface} netns {b}")).map(drop)
    }

    /// Runs `ip` on one host.
    pub(crate) fn ip(&self, host: usize, arguments: &str) -> Result<(), String> {
        ip(&format!("-n {} {arguments}", self.names[host])).map(drop)
    }

    /// Sets `interface` up on both, and waits until the system says that it runs.
    pub(crate) fn set_up(&self, interface: &str) -> Result<(), String> {
        (0..2).try_for_each(|host| self.ip(host, &format!("link set {interface} up")))?;
        let start = Instant::now();
        while !self.names.iter().all(|name| runs(name, interface)) {
            if start.elapsed() > Duration::from_secs(20) {
                return Err(format!("{interface} is up and does not run"));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What has left one host by `interface`.
    pub(crate) fn bytes_sent(&self, host: usize, interface: &str) -> u64 {
        let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        let mut command = Command::new("ip");
        let output = program::succeeds(command.args(["netns", "exec", &self.names[host], "cat", &file]));
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
    }

    /// The command `ccl` on one host.
    pub(crate) fn ccl(&self, host: usize) -> Command {
        let mut command = program::command(LIMIT_S, "ip");
        command.args(["netns", "exec", &self.names[host]]);
        // Processes of another host are out of sight too.
        command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program::ccl());
        command
    }

    /// Starts four ranks of `ccl perf all_reduce OPTIONS`, two on each host, with the variables of torchrun.
    pub(crate) fn perf(&self, options: &str, settings: &[(&str, &str)]) -> Ranks {
        let ranks = (0..RANKS).map(|rank| {
            let host = rank / 2;
            let mut command = self.ccl(host);
            command.args(["perf", "all_reduce"]).args(options.split(' '));
            command.env("RANK", rank.to_string()).env("LOCAL_RANK", (rank % 2).to_string());
            command.env("WORLD_SIZE", RANKS.to_string()).env("LOCAL_WORLD_SIZE", "2");
            command.env("MASTER_ADDR", ADDRESSES[0]).env("MASTER_PORT", "29500");
            command.env("CCL_HOSTID", &self.names[host]).envs(settings.iter().copied());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        });
        let mut children: Vec<Child> = ranks.collect();
        let table = BufReader::new(children[0].stdout.take().unwrap());
        Ranks { children, table }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made cannot be removed; there is nobody to tell.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Running ranks; those that still run when the value goes are ended.
pub(crate) struct Ranks {
    children: Vec<Child>,
    table: BufReader<ChildStdout>,
}

/// How a rank ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Since [`Ranks::outcomes`] was called.
    pub(crate) after: Duration,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ranks {
    /// Waits for the first row of the table of rank 0.
    pub(crate) fn wait_for_row(&mut self) {
        let mut line = String::new();
        while !line.trim_start().starts_with(|first: char| first.is_ascii_digit()) {
            line.clear();
            if self.table.read_line(&mut line).unwrap() == 0 {
                let mut stderr = String::new();
                self.children[0].stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("rank 0 ended before its first row: {stderr}");
            }
        }
    }

    /// How each rank ends, once all have.
    pub(crate) fn outcomes(mut self) -> Vec<Ended> {
        let start = Instant::now();
        let mut ends: Vec<Option<(ExitStatus, Duration)>> = vec![None; self.children.len()];
        while ends.iter().any(Option::is_none) {
            for (child, end) in self.children.iter_mut().zip(&mut ends).filter(|(_, end)| end.is_none()) {
                *end = child.try_wait().unwrap().map(|status| (status, start.elapsed()));
            }
            sleep(Duration::from_millis(10));
        }
        let ends = ends.into_iter().map(|end| end.expect("all have ended"));
        let mut ended: Vec<_> =
            self.children.iter_mut().zip(ends).map(|(child, end)| Ended::of(child, end)).collect();
        self.table.read_to_string(&mut ended[0].stdout).unwrap();
        ended
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Ok(None) = child.try_wait() {
                // `timeout` passes this on to the rank.
                let _ = Command::new("kill").arg(child.id().to_string()).status();
                let _ = child.wait();
            }
        }
    }
}

impl Ended {
    fn of(child: &mut Child, (status, after): (ExitStatus, Duration)) -> Ended {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        if let Some(mut pipe) = child.stdout.take() {
            pipe.read_to_string(&mut stdout).unwrap();
        }
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Ended { status, after, stdout, stderr }
    }
}

/// Removes the hosts of tests that were killed.
fn remove_left_behind() {
    let names = ip("netns list").unwrap_or_default();
    for name in names.lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix("ccl-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another test may have been faster.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Whether an interface is up and has a carrier.
fn runs(namespace: &str, interface: &str) -> bool {
    let shown = ip(&format!("-n {namespace} link show dev {interface}"));
    shown.is_ok_and(|text| text.contains("LOWER_UP") && !text.contains("NO-CARRIER"))
}

/// What `ip` prints, or why it fails.
fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip does not start: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("ip {arguments}: {}", program::both(&output).trim())),
    }
}

/// Of `eth0` of each host.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const RANKS: usize = 4;
const LIMIT_S: u64 = 120;
