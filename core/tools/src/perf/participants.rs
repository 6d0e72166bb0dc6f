//! Who takes part: every rank tells every other.

use ccl::{Communicator, Rank, Result};

use super::table::Participant;
use crate::ranks::cpus;

/// All ranks, in order.
pub(crate) fn gather(comm: &Communicator) -> Result<Vec<Participant>> {
    let mut all = vec![0; RECORD_BYTES * comm.size() as usize];
    comm.all_gather(&encode(&this_process()), &mut all)?;
    Ok(all.chunks(RECORD_BYTES).map(decode).collect())
}

/// With whom rank 0 exchanges messages: rank 1, unless the two are bound to one CPU and could only take turns; then the first rank
/// that is not.
pub(crate) fn partner(participants: &[Participant]) -> Rank {
    let place = |one: &Participant| one.cpu.map(|cpu| (one.host.clone(), cpu));
    let apart = |one: &Participant| place(one).is_none_or(|at| Some(at) != place(&participants[0]));
    Rank(participants.iter().skip(1).position(apart).map_or(1, |at| at as u32 + 1))
}

fn this_process() -> Participant {
    let cpu = match cpus::allowed()[..] {
        [only] => u32::try_from(only).ok(),
        _ => None,
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Participant { pid: std::process::id(), host, cpu }
}

/// Process, CPU or −1, then the host's name padded with zeros.
fn encode(participant: &Participant) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(&participant.pid.to_le_bytes());
    record[4..8].copy_from_slice(&participant.cpu.unwrap_or(u32::MAX).to_le_bytes());
    let host = participant.host.as_bytes();
    let length = host.len().min(RECORD_BYTES - 8);
    record[8..8 + length].copy_from_slice(&host[..length]);
    record
}

fn decode(record: &[u8]) -> Participant {
    let number = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    let host = String::from_utf8_lossy(&record[8..]).trim_end_matches('\0').to_owned();
    Participant { pid: number(0), host, cpu: Some(number(4)).filter(|cpu| *cpu != u32::MAX) }
}

const RECORD_BYTES: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_between_two_cpus_where_there_are_two() {
        let ranks = |cpus: &[Option<u32>]| -> Vec<Participant> {
            cpus.iter().map(|cpu| Participant { pid: 1, host: "node1".into(), cpu: *cpu }).collect()
        };
        let partner_of = |cpus: &[Option<u32>]| partner(&ranks(cpus)).0;
        assert_eq!(partner_of(&[Some(0), Some(0), Some(1), Some(1)]), 2);
        assert_eq!(partner_of(&[Some(0), Some(1), Some(0), Some(1)]), 1);
        assert_eq!(partner_of(&[None; 4]), 1);
        assert_eq!(partner_of(&[Some(0); 3]), 1);
        assert_eq!(partner_of(&[Some(0)]), 1);
        let mut two_hosts = ranks(&[Some(0), Some(0)]);
        two_hosts[1].host = "node2".into();
        assert_eq!(partner(&two_hosts), Rank(1));
        two_hosts.insert(1, two_hosts[0].clone());
        assert_eq!(partner(&two_hosts), Rank(2));
    }

    #[test]
    fn records_come_back_as_they_were() {
        for participant in [
            Participant { pid: 7, host: "node1".into(), cpu: Some(3) },
            Participant { pid: u32::MAX, host: String::new(), cpu: None },
            this_process(),
        ] {
            assert_eq!(decode(&encode(&participant)), participant);
        }
    }
}
