//! What every rank tells every other when joining, and what they must agree on.
//!
//! A hello is what ranks must agree on, behind its length, and where the rank is: what ranks of one process have in
//! common, behind its length, and what is its own. Both lengths are there so that what ranks have in common is read
//! once for all that say the same. Where a rank is may also travel by itself, out of band.

use std::sync::Arc;

use ccl_plan::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bootstrap::infos::Infos;
use crate::config::{Config, Difference};
use crate::error::{Error, Fault, Result};
use crate::transport::{ProcessInfo, TransportInfo};

/// What ranks must agree on.
#[derive(Serialize, Deserialize)]
pub(super) struct Common {
    pub(super) version: String,
    /// The network plugin: name, contract, digest of its file.
    pub(super) network: String,
    /// Algorithms of the user's: name and digest of each program.
    pub(super) programs: String,
    pub(super) agreed: Vec<(String, String)>,
}

/// The part of a hello on which ranks must agree.
pub(super) fn write(common: &Common) -> Result<Vec<u8>> {
    serde_json::to_vec(common).map(|common| behind_length(&common)).map_err(|error| unwritable(&error))
}

/// The part that says where a rank is.
pub(super) fn write_place(info: &TransportInfo) -> Result<Vec<u8>> {
    let process = serde_json::to_vec(&*info.process).map_err(|error| unwritable(&error))?;
    let seat = postcard::to_stdvec(&info.seat).map_err(|error| unwritable(&error))?;
    Ok([behind_length(&process), seat].concat())
}

/// What stands in the hellos behind the part on which ranks must agree, once all agree with this one. The first
/// rank that differs is named with both values.
pub(super) fn agreed(hellos: &Infos, rank: Rank, config: &Config) -> Result<Infos> {
    let own = hellos.get(rank.index()).ok_or_else(|| unreadable(rank, &"no information"))?;
    let (own, _) = split(rank, &own)?;
    let own_common = parse(rank, own)?;
    let mut places = Infos::with_capacity(hellos);
    let mut hellos = hellos.each();
    let mut from = Rank(0);
    while let Some(hello) = hellos.next() {
        let (common, place) = split(from, hello.bytes)?;
        // What is the same as in the hello before has been compared.
        let compared = LENGTH_BYTES + common.len();
        if hello.shared < compared && common != own {
            agree(&parse(from, common)?, from, &own_common, rank, config)?;
        }
        let shared = hello.shared.saturating_sub(compared);
        places.push(shared, &place[shared..]);
        from.0 += 1;
    }
    Ok(places)
}

/// Where all ranks are.
pub(super) fn places(places: &Infos) -> Result<Vec<TransportInfo>> {
    let mut last: Option<Arc<ProcessInfo>> = None;
    let mut infos = Vec::with_capacity(places.len());
    let mut places = places.each();
    let mut from = Rank(0);
    while let Some(place) = places.next() {
        let (process, seat) = split(from, place.bytes)?;
        let process = match last {
            Some(last) if place.shared >= LENGTH_BYTES + process.len() => last,
            _ => Arc::new(parse(from, process)?),
        };
        let seat = postcard::from_bytes(seat).map_err(|error| unreadable(from, &error))?;
        last = Some(Arc::clone(&process));
        infos.push(TransportInfo { process, seat });
        from.0 += 1;
    }
    Ok(infos)
}

fn behind_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// What stands behind its length, and the rest.
fn split(from: Rank, bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let parts = bytes
        .split_first_chunk::<LENGTH_BYTES>()
        .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
    parts.ok_or_else(|| unreadable(from, &"too few bytes"))
}

fn parse<T: DeserializeOwned>(from: Rank, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| unreadable(from, &error))
}

fn unwritable(error: &dyn std::fmt::Display) -> Error {
    Error::bug(format!("join information: {error}"))
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

const LENGTH_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::SeatInfo;

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
        };
        let seat = SeatInfo { mailbox: None, descriptor, nonce: [descriptor as u8; 32] };
        let place = write_place(&TransportInfo { process: Arc::new(process), seat }).unwrap();
        [write(&common).unwrap(), place].concat()
    }

    #[test]
    fn hellos_come_back_and_share_what_is_common() {
        let config = Config::default();
        let hosts = ["a", "a", "b", "b", "a"];
        let hellos: Infos = (0..).zip(hosts).map(|(rank, host)| hello(&config, "1", host, rank)).collect();
        for rank in [0, 3] {
            let infos = places(&agreed(&hellos, Rank(rank), &config).unwrap()).unwrap();
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
            (behind_length(&same()), "expected the join information"),
        ] {
            let error = agreed(&Infos::from_iter([same(), odd]), Rank(0), &config).unwrap_err();
            assert_eq!(*error.fault(), Fault::Remote { rank: Rank(1) });
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn ranks_that_join_in_band_and_out_of_band_are_told_apart_before_anything_else() {
        let config = Config::default();
        let out_of_band = Config::from_vars([("NCCL_OOB_NET_ENABLE", "1")]).unwrap();
        let (here, apart) = (hello(&config, "1", "a", 0), hello(&out_of_band, "1", "a", 1));
        let own_part = split(Rank(1), &apart).unwrap().1.len();
        let apart = apart[..apart.len() - own_part].to_vec();
        for (rank, config) in [(0, &config), (1, &out_of_band)] {
            let error =
                agreed(&Infos::from_iter([&here, &apart]), Rank(rank), config).unwrap_err().to_string();
            assert!(error.contains("CCL_OOB_NET_ENABLE") && error.contains("1 on rank 1"), "{error}");
        }
        let cut = places(&Infos::from_iter([b"1234"])).unwrap_err();
        assert_eq!(*cut.fault(), Fault::Remote { rank: Rank(0) });
    }

    #[test]
    fn what_goes_through_the_roots_is_the_same_for_all_ranks_if_places_travel_out_of_band() {
        let config = Config::default();
        let all = |rank| hello(&config, "1", "a", rank);
        let in_band = (0..1024).map(all).collect::<Infos>();
        let cut = |hello: Vec<u8>| hello[..4 + split(Rank(0), &hello).unwrap().0.len()].to_vec();
        let out_of_band = (0..1024).map(|rank| cut(all(rank))).collect::<Infos>();
        let bytes = [in_band, out_of_band].map(|infos| postcard::to_stdvec(&infos).unwrap().len());
        println!("a table of 1,024 ranks: {} bytes in band, {} out of band", bytes[0], bytes[1]);
        assert!(bytes[1] < 4 * 1024 + 2048 && 5 * bytes[1] < bytes[0], "{bytes:?}");
    }
}
