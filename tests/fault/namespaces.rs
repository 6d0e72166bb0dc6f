//! Two hosts with two ranks each: TCP between them, a cable that is pulled, and misleading interfaces.

use std::time::Duration;

use ccl_tests::{Stolen, program, skip};

use crate::hosts::{ADDRESSES, Hosts};

#[test]
fn two_hosts_reduce_over_tcp() {
    let Some(hosts) = hosts("two_hosts_reduce_over_tcp") else { return };
    assert_reduces(&hosts);
}

#[test]
fn a_pulled_cable_is_an_error_that_names_the_lost_peers() {
    let Some(hosts) = hosts("a_pulled_cable_is_an_error_that_names_the_lost_peers") else { return };
    let deadlines = [("CCL_TIMEOUT", "5s"), ("CCL_INIT_TIMEOUT", "60s")];
    let mut ranks = hosts.perf("-b 8 -e 8M -i 64K -t 0.2", &deadlines);
    ranks.wait_for_row();
    let stolen = Stolen::watch();
    hosts.ip(1, "link set eth0 down").unwrap();
    for (rank, ended) in ranks.outcomes().iter().enumerate() {
        let lost = if rank < 2 { ["rank 2", "rank 3"] } else { ["rank 0", "rank 1"] };
        println!("rank {rank} after {:?}: {}", ended.after, ended.stderr);
        assert!(ended.after < Duration::from_secs(5 + 2) + stolen.so_far(), "rank {rank}: {ended:?}");
        assert_eq!(ended.status.code(), Some(3), "rank {rank}: {ended:?}");
        assert!(lost.iter().any(|name| ended.stderr.contains(name)), "rank {rank}: {ended:?}");
    }
}

#[test]
fn the_right_interface_is_found_among_decoys() {
    let Some(hosts) = hosts("the_right_interface_is_found_among_decoys") else { return };
    add_decoys(&hosts).unwrap();
    for (host, address) in ADDRESSES.iter().enumerate() {
        let output = program::succeeds(hosts.ccl(host).args(["doctor", "--no-trial"]));
        let text = program::both(&output);
        let line = |interface: &str| {
            let mut lines = text.lines().filter(|line| line.split_whitespace().any(|word| word == interface));
            lines.next().unwrap_or_else(|| panic!("nothing about {interface} in\n{text}"))
        };
        for (interface, verdict, reason) in [
            ("eth0", address, "it is up and has an address that others can reach"),
            ("docker0", &"not used", "bridge"),
            ("eth9", &"not used", "it is down"),
            ("tunl7", &"not used", "tunnel"),
        ] {
            let line = line(interface);
            assert!(line.contains(verdict) && line.contains(reason), "{interface}: {text}");
        }
    }
    assert_reduces(&hosts);
}

/// Four ranks find one another with no setting but who is on which host, and reduce without a mistake.
fn assert_reduces(hosts: &Hosts) {
    let ranks = hosts.perf("-b 8,64K,1M -t 0.01", &[]).outcomes();
    for (rank, ended) in ranks.iter().enumerate() {
        assert!(ended.status.success(), "rank {rank}: {ended:?}");
    }
    let table = &ranks[0].stdout;
    assert!(table.contains("# nRanks 4 ") && table.contains("# Out of bounds values : 0 OK"), "{table}");
    let sent = hosts.bytes_sent(0, "eth0");
    assert!(sent > LEAST_SENT_BYTES, "expected the data on the cable, found {sent} bytes");
}

/// On both hosts: a bridge with the same address as the other's, a cable that is not up, and a tunnel.
fn add_decoys(hosts: &Hosts) -> Result<(), String> {
    // Where the kernel has no bridges or tunnels, cables with telling names stand for them.
    add_bridges(hosts).or_else(|_| hosts.connect("docker0"))?;
    add_tunnel(hosts).or_else(|_| hosts.connect("tunl7"))?;
    hosts.connect("eth9")?;
    for host in 0..2 {
        hosts.ip(host, "addr add 172.17.0.1/16 dev docker0")?;
        hosts.ip(host, &format!("addr add 10.79.0.{}/24 dev tunl7", host + 1))?;
        hosts.ip(host, &format!("addr add 10.78.0.{}/24 dev eth9", host + 1))?;
    }
    hosts.set_up("docker0")?;
    hosts.set_up("tunl7")
}

/// A bridge runs once something that runs is plugged into it.
fn add_bridges(hosts: &Hosts) -> Result<(), String> {
    (0..2).try_for_each(|host| hosts.ip(host, "link add docker0 type bridge"))?;
    hosts.connect("container0")?;
    (0..2).try_for_each(|host| hosts.ip(host, "link set container0 master docker0"))?;
    hosts.set_up("container0")
}

fn add_tunnel(hosts: &Hosts) -> Result<(), String> {
    (0..2).try_for_each(|host| {
        let (local, remote) = (ADDRESSES[host], ADDRESSES[1 - host]);
        hosts.ip(host, &format!("link add tunl7 type ipip local {local} remote {remote}"))
    })
}

fn hosts(test: &str) -> Option<Hosts> {
    Hosts::new().map_err(|reason| skip(test, &format!("needs namespaces (root and iproute2): {reason}"))).ok()
}

/// A ring of four sends the data of 1 MiB across at least once.
const LEAST_SENT_BYTES: u64 = 1 << 20;
