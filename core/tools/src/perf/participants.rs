//! Who takes part: every rank tells every other.

use ccl::{Communicator, Result};

use super::table::Participant;
use crate::ranks::cpus;

/// All ranks, in order.
pub(crate) fn gather(comm: &Communicator) -> Result<Vec<Participant>> {
    let mut all = vec![0; RECORD_BYTES * comm.size() as usize];
    comm.all_gather(&encode(&this_process()), &mut all)?;
    Ok(all.chunks(RECORD_BYTES).map(decode).collect())
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
