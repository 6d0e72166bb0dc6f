//! Launcher, interfaces, ports, networks.

use std::net::TcpListener;

use ccl::Config;
use ccl::discover::interfaces::{Wishes, choose, list};
use ccl::discover::launcher::{Job, Launcher};

use super::Finding;

/// How ranks would meet and talk.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = vec![launcher(config)];
    findings.extend(interfaces(config));
    findings.push(ports(config));
    findings.extend(plugins(config));
    findings
}

fn launcher(config: &Config) -> Finding {
    match Job::discover(config) {
        Ok(job) if job.launcher == Launcher::Alone => Finding::ok(
            "launcher",
            "found",
            "none",
            "this process would be rank 0 of 1; `ccl run` starts local ranks",
        ),
        Ok(job) => {
            let found = format!("rank {} of {}", job.rank, job.nranks);
            Finding::ok("launcher", job.launcher.to_string(), found, format!("meeting: {:?}", job.meeting))
        }
        Err(error) => Finding::problem("launcher", "found", "contradiction", error.to_string()),
    }
}

fn interfaces(config: &Config) -> Vec<Finding> {
    let found = list().and_then(|interfaces| choose(&interfaces, &Wishes::of(config)));
    let choice = match found {
        Ok(choice) => choice,
        Err(error) => return vec![Finding::problem("interface", "any", "none usable", error.to_string())],
    };
    let chosen = choice.chosen.iter().enumerate().map(|(place, chosen)| {
        let found = format!("{} {}", if place == 0 { "used:" } else { "usable:" }, chosen.address);
        Finding::ok("interface", &chosen.name, found, chosen.reason)
    });
    let rejected = choice
        .rejected
        .iter()
        .map(|rejected| Finding::ok("interface", &rejected.name, "not used", &rejected.reason));
    chosen.chain(rejected).collect()
}

fn ports(config: &Config) -> Finding {
    let Some(range) = config.port_range() else {
        return Finding::ok("ports", "CCL_PORT_RANGE", "any free port", "not set; behind a firewall, set it");
    };
    let shown = format!("{}-{}", range.start(), range.end());
    let free =
        range.clone().take(MOST_PORTS_TRIED).filter(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok());
    let (free, tried) = (free.count(), range.count().min(MOST_PORTS_TRIED));
    let why = format!("{free} of the first {tried} are free; each rank listens on one");
    match free {
        0 => Finding::problem("ports", "CCL_PORT_RANGE", shown, why),
        _ => Finding::ok("ports", "CCL_PORT_RANGE", shown, why),
    }
}

fn plugins(config: &Config) -> Vec<Finding> {
    let chosen = match ccl::network::choose(config) {
        Ok(plugin) => {
            let why =
                "CCL_NET_PLUGIN, else libccl-net.so, else libnccl-net.so, else the sockets that are built in";
            Finding::ok("network", "used", plugin.name(), why)
        }
        Err(error) => Finding::problem("network", "used", "none", error.to_string()),
    };
    let candidate = |candidate: ccl::network::Candidate| {
        let line = candidate.to_string();
        let (file, verdict) = line.split_once(": ").unwrap_or((&line, ""));
        Finding::ok("network", "candidate", file, verdict)
    };
    [chosen].into_iter().chain(ccl::network::candidates(config).into_iter().map(candidate)).collect()
}

const MOST_PORTS_TRIED: usize = 100;
