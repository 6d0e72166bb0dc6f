//! What a rank finds in its environment.

use std::net::{Ipv4Addr, TcpListener};

/// The variables that tell `rank` of `n` on this machine who it is and where to meet the others.
///
/// They are ours and torchrun's, so that programs written for either find theirs.
pub(crate) fn variables(rank: u32, n: u32, port: u16) -> Vec<(&'static str, String)> {
    let (rank, n) = (rank.to_string(), n.to_string());
    let ranks = ["CCL_RANK", "CCL_LOCAL_RANK", "RANK", "LOCAL_RANK"];
    let sizes = ["CCL_NRANKS", "CCL_LOCAL_NRANKS", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];
    let ranks = ranks.map(|name| (name, rank.clone()));
    let sizes = sizes.map(|name| (name, n.clone()));
    let meeting = [("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()), ("MASTER_PORT", port.to_string())];
    ranks.into_iter().chain(sizes).chain(meeting).collect()
}

/// Variables of other launchers' that would contradict ours.
pub(crate) const REMOVED: [&str; 4] =
    ["GROUP_RANK", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];

/// A port on which nobody listens now.
pub(crate) fn free_port() -> ccl::Result<u16> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    port.map(|address| address.port()).map_err(|error| {
        ccl::Error::system("find a free port on 127.0.0.1", error, "bring the loopback interface up")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_its_numbers_and_all_the_same_place() {
        let variables: std::collections::BTreeMap<_, _> = variables(2, 5, 4000).into_iter().collect();
        for (name, value) in
            [("RANK", "2"), ("CCL_LOCAL_RANK", "2"), ("WORLD_SIZE", "5"), ("MASTER_PORT", "4000")]
        {
            assert_eq!(variables[name], value);
        }
        assert_eq!(variables.len(), 10);
    }
}
