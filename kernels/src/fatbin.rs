//! What a fatbin holds. The driver picks from it by itself; this says beforehand whether it will find something.

use crate::target::Target;

/// What the parts of a fatbin were made for; nothing if it is none, or of a kind that is not known here.
pub fn targets(fatbin: &[u8]) -> Option<Vec<Target>> {
    if fatbin.get(..4)? != MAGIC {
        return None;
    }
    let start = usize::from(u16_at(fatbin, 6)?);
    let bytes = usize::try_from(u64_at(fatbin, 8)?).ok()?;
    let mut left = fatbin.get(start..start.checked_add(bytes)?)?;
    let mut found = Vec::new();
    while !left.is_empty() {
        let header = u32_at(left, 4)? as usize;
        let payload = usize::try_from(u64_at(left, 8)?).ok()?;
        if header < PART_BYTES {
            return None;
        }
        let capability = u32_at(left, 28)?;
        match u16_at(left, 0)? {
            TEXT => found.push(Target::Portable(capability)),
            MACHINE => found.push(Target::Machine(capability)),
            _ => {}
        }
        left = left.get(header.checked_add(payload)?..)?;
    }
    Some(found)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

const MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
/// The least that stands before each part.
const PART_BYTES: usize = 32;
const TEXT: u16 = 1;
const MACHINE: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// A fatbin whose parts have no more than their header and 8 bytes.
    fn fatbin(parts: &[(u16, u32)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, capability) in parts {
            let mut part = vec![0; 64 + 8];
            part[..2].copy_from_slice(&kind.to_le_bytes());
            part[4..8].copy_from_slice(&64u32.to_le_bytes());
            part[8..16].copy_from_slice(&8u64.to_le_bytes());
            part[28..32].copy_from_slice(&capability.to_le_bytes());
            body.extend(part);
        }
        [&MAGIC[..], &[1, 0, 16, 0], &(body.len() as u64).to_le_bytes(), &body].concat()
    }

    #[test]
    fn parts_say_what_they_were_made_for() {
        let some = fatbin(&[(MACHINE, 80), (MACHINE, 90), (99, 1), (TEXT, 80)]);
        let expected = vec![Target::Machine(80), Target::Machine(90), Target::Portable(80)];
        assert_eq!(targets(&some), Some(expected));
        assert_eq!(targets(&fatbin(&[])), Some(Vec::new()));
    }

    #[test]
    fn what_is_cut_or_no_fatbin_is_not_read() {
        let whole = fatbin(&[(MACHINE, 80), (TEXT, 80)]);
        for cut in 0..whole.len() {
            assert_eq!(targets(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(targets(b"\x7fELF and more than sixteen bytes"), None);
        let mut endless = fatbin(&[(MACHINE, 80)]);
        endless[20..24].fill(0);
        assert_eq!(targets(&endless), None, "a part of no length");
    }
}
