//! The unique id: opaque bytes by which ranks find each other.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// Where the root listens, and the secret that lets a rank in.
///
/// 128 bytes, opaque to everybody who passes them on. Whoever holds an id may join, so hand it only
/// to the ranks: `Debug` shows addresses and job, never the secret; [`UniqueId::to_hex`] is the
/// whole id.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    job: u64,
    secret: Secret,
    addresses: Vec<SocketAddr>,
}

impl UniqueId {
    /// Bytes of an id.
    pub const SIZE_BYTES: usize = 128;

    /// A new job with a fresh secret, whose root listens at `addresses` (all with one port).
    ///
    /// At most [`MAX_ADDRESSES`] are kept.
    pub(crate) fn new(mut addresses: Vec<SocketAddr>) -> Result<UniqueId> {
        addresses.truncate(MAX_ADDRESSES);
        let job = u64::from_le_bytes(random()?);
        Ok(UniqueId { job, secret: Secret(random()?), addresses })
    }

    /// The id of a job whose ranks all know where the root listens, and a secret text.
    ///
    /// Equal arguments give equal ids, so nothing has to be passed on; see [`super::Root::start_for`].
    /// Of `addresses`, all with one port, at most four are kept. The secret is as hard to guess as
    /// the text is.
    pub fn agreed(mut addresses: Vec<SocketAddr>, secret: &str) -> UniqueId {
        addresses.truncate(MAX_ADDRESSES);
        let secret = blake3::derive_key("ccl unique id, secret of an agreed address", secret.as_bytes());
        let mut job = [0; 8];
        job.copy_from_slice(&blake3::derive_key("ccl unique id, job of a secret", &secret)[..8]);
        UniqueId { job: u64::from_le_bytes(job), secret: Secret(secret), addresses }
    }

    /// The id as opaque bytes.
    pub fn to_bytes(&self) -> [u8; UniqueId::SIZE_BYTES] {
        let mut bytes = [0; UniqueId::SIZE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = FORMAT;
        bytes[5] = self.addresses.len() as u8;
        let port = self.addresses.first().map_or(0, SocketAddr::port);
        bytes[6..8].copy_from_slice(&port.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.job.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.secret.0);
        for (slot, address) in bytes[48..112].chunks_exact_mut(16).zip(&self.addresses) {
            slot.copy_from_slice(&mapped(address.ip()).octets());
        }
        let check = blake3::hash(&bytes[..112]);
        bytes[112..].copy_from_slice(&check.as_bytes()[..16]);
        bytes
    }

    /// The id in `bytes`; an error if they are not an id, or were damaged on the way.
    pub fn from_bytes(bytes: &[u8]) -> Result<UniqueId> {
        let found = bytes.len();
        let bytes: &[u8; UniqueId::SIZE_BYTES] =
            bytes.try_into().map_err(|_| invalid(format!("expected 128 bytes, found {found}")))?;
        if bytes[..4] != MAGIC {
            return Err(invalid("expected the bytes of a ccl unique id, found something else".into()));
        }
        if bytes[4] != FORMAT {
            return Err(invalid(format!("expected id format {FORMAT}, found {}", bytes[4])));
        }
        if blake3::hash(&bytes[..112]).as_bytes()[..16] != bytes[112..] {
            return Err(invalid("expected a unique id, found one damaged on the way".into()));
        }
        let port = u16::from_le_bytes([bytes[6], bytes[7]]);
        let count = usize::from(bytes[5]).min(MAX_ADDRESSES);
        let addresses =
            bytes[48..112].chunks_exact(16).take(count).map(|octets| address(octets, port)).collect();
        let mut job = [0; 8];
        job.copy_from_slice(&bytes[8..16]);
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[16..48]);
        Ok(UniqueId { job: u64::from_le_bytes(job), secret: Secret(secret), addresses })
    }

    /// The id as 256 hexadecimal digits, secret included.
    pub fn to_hex(&self) -> String {
        self.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Where the root listens, in the order to try.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The random number of this job, for names and logs. Not a secret.
    pub fn job(&self) -> u64 {
        self.job
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<UniqueId> {
        let digits = text.trim().as_bytes();
        let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let pairs = digits.chunks(2).map(|pair| match pair {
            [high, low] => Some(value(*high)? << 4 | value(*low)?),
            _ => None,
        });
        let bytes: Option<Vec<u8>> = pairs.take(UniqueId::SIZE_BYTES + 1).collect();
        let bytes =
            bytes.ok_or_else(|| invalid("expected 256 hexadecimal digits, found something else".into()))?;
        UniqueId::from_bytes(&bytes)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = format_args!("{:016x}", self.job);
        f.debug_struct("UniqueId")
            .field("job", &job)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// 256 random bits that only the ranks of a job know.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) [u8; 32]);

/// `N` bytes from the system's random generator.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(Error::system("getrandom", error, "the kernel must offer getrandom(2)"));
            }
        }
    }
    Ok(bytes)
}

fn invalid(cause: String) -> Error {
    Error::usage(cause, "pass the unique id exactly as the rank that made it printed or sent it")
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn address(octets: &[u8], port: u16) -> SocketAddr {
    let mut bits = [0; 16];
    bits.copy_from_slice(octets);
    SocketAddr::new(Ipv6Addr::from(bits).to_canonical(), port)
}

/// Addresses an id has room for.
pub(crate) const MAX_ADDRESSES: usize = 4;

const MAGIC: [u8; 4] = *b"ccl\0";
const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> UniqueId {
        UniqueId::new(vec!["10.1.2.3:4000".parse().unwrap(), "[fe80::1]:4000".parse().unwrap()]).unwrap()
    }

    #[test]
    fn bytes_and_hex_give_the_id_back() {
        let id = sample();
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
        assert_eq!(id.to_hex().len(), 256);
        assert_eq!(format!(" {}\n", id.to_hex().to_uppercase()).parse::<UniqueId>().unwrap(), id);
    }

    #[test]
    fn agreed_ids_differ_by_secret_only() {
        let addresses = vec!["10.1.2.3:4000".parse().unwrap()];
        let id = UniqueId::agreed(addresses.clone(), "sesame");
        assert_eq!(id, UniqueId::agreed(addresses.clone(), "sesame"));
        let other = UniqueId::agreed(addresses.clone(), "sesam");
        assert!(other.secret != id.secret && other.job != id.job && id.addresses() == addresses);
    }

    #[test]
    fn debug_hides_the_secret() {
        let id = UniqueId { job: 1, secret: Secret([0xab; 32]), ..sample() };
        let text = format!("{id:?}");
        assert!(!text.contains("abab") && !text.contains("171") && text.contains("10.1.2.3:4000"), "{text}");
    }

    #[test]
    fn damage_is_noticed() {
        let mut bytes = sample().to_bytes();
        bytes[20] ^= 1;
        assert!(UniqueId::from_bytes(&bytes).unwrap_err().cause().contains("damaged"));
        assert!("abc".parse::<UniqueId>().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_and_text_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in ".{0,300}") {
            let _ = UniqueId::from_bytes(&bytes);
            let _ = text.parse::<UniqueId>();
        }
    }
}
