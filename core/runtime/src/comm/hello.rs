//! What every rank tells every other when joining, and what they must agree on.
//!
//! A hello is what ranks of one process mostly have in common, behind its length, and what is a rank's own.
//! The common part is read once for all ranks that say the same.

use std::sync::Arc;

use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Difference};
use crate::error::{Error, Fault, Result};
use crate::transport::{ProcessInfo, SeatInfo, TransportInfo};

/// The part of a hello that ranks of one process mostly have in common.
#[derive(Serialize, Deserialize)]
pub(super) struct Common {
    pub(super) version: String,
    /// The network plugin: name, contract, digest of its file.
    pub(super) network: String,
    /// Algorithms of the user's: name and digest of each program.
    pub(super) programs: String,
    pub(super) agreed: Vec<(String, String)>,
    pub(super) process: Arc<ProcessInfo>,
}

/// A rank's hello as it is sent.
pub(super) fn write(common: &Common, seat: &SeatInfo) -> Result<Vec<u8>> {
    let bug = |error: &dyn std::fmt::Display| Error::bug(format!("join information: {error}"));
    let common = serde_json::to_vec(common).map_err(|error| bug(&error))?;
    let seat = postcard::to_stdvec(seat).map_err(|error| bug(&error))?;
    Ok([&(common.len() as u32).to_le_bytes()[..], &common, &seat].concat())
}

/// The transport infos of all ranks, once they agree with this one on what they must. The first rank that
/// differs is named with both values.
pub(super) fn read_all(hellos: &[Vec<u8>], rank: Rank, config: &Config) -> Result<Vec<TransportInfo>> {
    let (own, _) = split(rank, &hellos[rank.index()])?;
    let own_common = parse(rank, own)?;
    let (mut last_bytes, mut last) = (own, Arc::clone(&own_common.process));
    let mut infos = Vec::with_capacity(hellos.len());
    for (from, bytes) in (0..).map(Rank).zip(hellos) {
        let (common, seat) = split(from, bytes)?;
        if common != last_bytes {
            let parsed = parse(from, common)?;
            agree(&parsed, from, &own_common, rank, config)?;
            (last_bytes, last) = (common, Arc::clone(&parsed.process));
        }
        let seat: SeatInfo = postcard::from_bytes(seat).map_err(|error| unreadable(from, &error))?;
        infos.push(TransportInfo { process: Arc::clone(&last), seat });
    }
    Ok(infos)
}

/// The common part and the rank's own.
fn split(from: Rank, bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let parts = bytes
        .split_first_chunk::<4>()
        .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
    parts.ok_or_else(|| unreadable(from, &"too few bytes"))
}

fn parse(from: Rank, common: &[u8]) -> Result<Common> {
    serde_json::from_slice(common).map_err(|error| unreadable(from, &error))
}

fn unreadable(from: Rank, error: &dyn std::fmt::Display) -> Error {
    Error::new(
        Fault::Remote { rank: from },
        format!("expected the join information of ccl {}, found {error}", env!("CARGO_PKG_VERSION")),
        "run the same version of ccl on every rank",
    )
}

fn agree(hello: &Common, other: Rank, own: &Common, rank: Rank, config: &Config) -> Result<()> {
    let advice = "give every rank the same settings: check how the launcher forwards the environment";
    let differ =
        |cause: String, advice: &'static str| Err(Error::new(Fault::Remote { rank: other }, cause, advice));
    if hello.version != own.version {
        let cause = format!(
            "expected one version of ccl, found {} on rank {rank} and {} on rank {other}",
            own.version, hello.version
        );
        return differ(cause, advice);
    }
    if hello.network != own.network {
        let cause = format!(
            "expected one network plugin, found {} on rank {rank} and {} on rank {other}",
            own.network, hello.network
        );
        return differ(cause, "install the same plugin file on every host");
    }
    if hello.programs != own.programs {
        let shown =
            |programs: &str| if programs.is_empty() { "none".to_owned() } else { programs.to_owned() };
        let cause = format!(
            "expected the same programs in CCL_ALGO_FILE, found {} on rank {rank} and {} on rank {other}",
            shown(&own.programs),
            shown(&hello.programs)
        );
        return differ(cause, "give every rank the same files");
    }
    let differences = config.differences(&hello.agreed);
    if !differences.is_empty() {
        let lines: Vec<_> = differences.iter().map(|d| difference(d, rank, other)).collect();
        return differ(format!("expected equal settings on all ranks, found {}", lines.join("; ")), advice);
    }
    Ok(())
}

fn difference(difference: &Difference, rank: Rank, other: Rank) -> String {
    let show = |value: &Option<String>| match value.as_deref() {
        None => "unknown".to_string(),
        Some("") => "not set".to_string(),
        Some(value) => value.to_string(),
    };
    let (ours, theirs) = (show(&difference.ours), show(&difference.theirs));
    format!("{} = {ours} on rank {rank} and {theirs} on rank {other}", difference.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(config: &Config, version: &str, host: &str, descriptor: i32) -> Vec<u8> {
        hello_with(config, (version, ""), host, descriptor)
    }

    fn hello_with(
        config: &Config,
        (version, programs): (&str, &str),
        host: &str,
        descriptor: i32,
    ) -> Vec<u8> {
        let process = ProcessInfo {
            host: host.to_owned(),
            host_name: host.to_owned(),
            number: 7,
            namespace: 8,
            shares_memory: true,
            cpus: vec![3],
        };
        let agreed = config.agreed().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let common = Common {
            version: version.to_owned(),
            network: String::new(),
            programs: programs.to_owned(),
            agreed,
            process: Arc::new(process),
        };
        write(&common, &SeatInfo { mailbox: None, descriptor, nonce: [descriptor as u8; 32] }).unwrap()
    }

    #[test]
    fn hellos_come_back_and_share_what_is_common() {
        let config = Config::default();
        let hosts = ["a", "a", "b", "b", "a"];
        let hellos: Vec<_> = (0..).zip(hosts).map(|(rank, host)| hello(&config, "1", host, rank)).collect();
        for rank in [0, 3] {
            let infos = read_all(&hellos, Rank(rank), &config).unwrap();
            for (rank, (info, host)) in (0..).zip(infos.iter().zip(hosts)) {
                assert_eq!((info.process.host.as_str(), info.seat.descriptor), (host, rank));
            }
            assert!(Arc::ptr_eq(&infos[0].process, &infos[1].process));
        }
    }

    #[test]
    fn whoever_differs_is_named() {
        let config = Config::default();
        let other = Config::from_vars([("CCL_SLOTS", "5")]).unwrap();
        let same = || hello(&config, "1", "a", 0);
        for (odd, said) in [
            (hello(&config, "2", "a", 1), "1 on rank 0 and 2 on rank 1"),
            (hello(&other, "1", "a", 1), "CCL_SLOTS"),
            (hello_with(&config, ("1", "mine abcd"), "a", 1), "found none on rank 0 and mine abcd on rank 1"),
            (vec![1, 2, 3], "too few bytes"),
            ([&same()[..4], b"nonsense"].concat(), "too few bytes"),
        ] {
            let error = read_all(&[same(), odd], Rank(0), &config).unwrap_err();
            assert_eq!(*error.fault(), Fault::Remote { rank: Rank(1) });
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
