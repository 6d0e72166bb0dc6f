//! What the driver may be given as an image: it reads as far as the image's own header says.

use crate::error::{Error, Result};

/// An image that is as long as it says.
#[derive(Debug)]
pub(crate) enum Image<'a> {
    /// A cubin or a fatbin.
    Binary(&'a [u8]),
    /// PTX, with the zero at its end that the driver looks for.
    Text(Vec<u8>),
}

impl<'a> Image<'a> {
    /// Checks that the driver will not read past the end of `bytes`.
    pub(crate) fn check(call: &'static str, bytes: &'a [u8]) -> Result<Self> {
        let expected = if bytes.starts_with(ELF) {
            elf_bytes(bytes)
        } else if bytes.starts_with(FATBIN) {
            fatbin_bytes(bytes)
        } else if bytes.is_ascii() && !bytes.is_empty() && !bytes.contains(&0) {
            return Ok(Self::Text([bytes, b"\0"].concat()));
        } else {
            return Err(refused(
                call,
                "expected a cubin, a fatbin or PTX, found neither; take what nvcc or NVRTC made",
            ));
        };
        match expected {
            Some(expected) if expected <= bytes.len() as u64 => Ok(Self::Binary(bytes)),
            _ => Err(refused(
                call,
                "expected an image as long as its header says, found a shorter one; compile it again",
            )),
        }
    }

    /// Where the driver reads.
    pub(crate) fn as_ptr(&self) -> *const std::ffi::c_void {
        match self {
            Self::Binary(bytes) => bytes.as_ptr().cast(),
            Self::Text(bytes) => bytes.as_ptr().cast(),
        }
    }
}

/// The end of an ELF file's section and program headers, and of every section.
fn elf_bytes(bytes: &[u8]) -> Option<u64> {
    let sections = u64_at(bytes, 40)?;
    let (each, count) = (u64::from(u16_at(bytes, 58)?), u64::from(u16_at(bytes, 60)?));
    let mut end = sections.checked_add(each * count)?;
    for section in 0..count {
        let header = usize::try_from(sections.checked_add(section * each)?).ok()?;
        let (kind, offset) =
            (u32_at(bytes, header.checked_add(4)?)?, u64_at(bytes, header.checked_add(24)?)?);
        if kind != SECTION_WITHOUT_BYTES {
            end = end.max(offset.checked_add(u64_at(bytes, header.checked_add(32)?)?)?);
        }
    }
    Some(end)
}

/// A fatbin's header and what follows it.
fn fatbin_bytes(bytes: &[u8]) -> Option<u64> {
    u64::from(u16_at(bytes, 6)?).checked_add(u64_at(bytes, 8)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn refused(call: &'static str, what: &str) -> Error {
    Error::Usage { call, what: what.into() }
}

const ELF: &[u8] = b"\x7fELF";
const FATBIN: &[u8] = &[0x50, 0xed, 0x55, 0xba];
/// `SHT_NOBITS`.
const SECTION_WITHOUT_BYTES: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_must_be_as_long_as_it_says() {
        let mut fatbin = [FATBIN, &[1, 0, 16, 0], &8u64.to_le_bytes(), &[0; 8]].concat();
        assert!(matches!(Image::check("x", &fatbin), Ok(Image::Binary(_))));
        fatbin.pop();
        assert!(Image::check("x", &fatbin).is_err());
        assert!(Image::check("x", ELF).is_err());
        assert!(Image::check("x", b"\x01\xff").is_err());
        assert!(Image::check("x", b"").is_err());
        assert!(matches!(Image::check("x", b".version 7.0"), Ok(Image::Text(text)) if text.ends_with(b"\0")));
    }
}
