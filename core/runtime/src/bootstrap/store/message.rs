//! What stands under the key: an id or the reason why there is none, sealed if there is a secret.

use ccl_plan::Rank;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::bootstrap::store::ID_BYTES;
use crate::config::Secret;
use crate::error::{Error, Fault, Result};

/// The id, or the reason why there is none.
pub(super) fn pack(made: &Result<[u8; ID_BYTES]>) -> Vec<u8> {
    pack_all(&made.as_ref().map(|id| vec![*id]).map_err(Error::clone))
}

/// The same of several ids.
pub(super) fn pack_all(made: &Result<Vec<[u8; ID_BYTES]>>) -> Vec<u8> {
    match made {
        Ok(ids) => [vec![IS_ID], ids.concat()].concat(),
        Err(error) => {
            let text = error.to_string();
            let end = text.floor_char_boundary(MOST_REASON_BYTES);
            [&[IS_REASON], &text.as_bytes()[..end]].concat()
        }
    }
}

/// Reads what [`pack`] wrote.
pub(super) fn open(value: &[u8]) -> Result<[u8; ID_BYTES]> {
    match open_all(value, Rank(0))?.as_slice() {
        [id] => Ok(*id),
        _ => Err(damaged(value)),
    }
}

/// Reads what [`pack_all`] wrote on rank `maker`.
pub(super) fn open_all(value: &[u8], maker: Rank) -> Result<Vec<[u8; ID_BYTES]>> {
    match value.split_first() {
        Some((&IS_ID, ids)) => match ids.as_chunks() {
            (ids @ [_, ..], []) => Ok(ids.to_vec()),
            _ => Err(damaged(value)),
        },
        Some((&IS_REASON, reason)) => {
            let reason = String::from_utf8_lossy(reason);
            let cause = format!("rank {maker} could not make the unique id: {reason}");
            Err(Error::new(Fault::Remote { rank: maker }, cause, "see the error on that rank"))
        }
        _ => Err(damaged(value)),
    }
}

/// Seals values with a secret: what is stored can then neither be read nor replaced without it.
pub(crate) struct Sealer {
    key: Option<[u8; 32]>,
}

impl Sealer {
    /// Seals with a key that is as good as random.
    pub(crate) fn keyed(key: [u8; 32]) -> Sealer {
        Sealer { key: Some(key) }
    }

    /// Seals with `secret`, for the one store key `key`; without a secret values pass as they are.
    pub(super) fn new(secret: Option<&Secret>, key: &str) -> Sealer {
        let derive = |secret: &Secret| {
            let mut hasher = blake3::Hasher::new_derive_key("ccl exchange of the unique id, version 1");
            hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes());
            hasher.update(secret.reveal().as_bytes());
            hasher.finalize().into()
        };
        Sealer { key: secret.map(derive) }
    }

    /// A nonce, the value hidden by a keyed stream, and a keyed digest of both.
    pub(crate) fn seal(&self, value: &[u8]) -> Result<Vec<u8>> {
        let Some(key) = &self.key else { return Ok(value.to_vec()) };
        let mut sealed = vec![0; NONCE_BYTES];
        getrandom(&mut sealed, GetRandomFlags::empty())
            .map_err(|error| Error::system("draw random bytes", error, "see getrandom(2)"))?;
        let hidden = hide(key, &sealed, value);
        sealed.extend(hidden);
        let digest = digest(key, &sealed);
        sealed.extend(digest.as_bytes());
        Ok(sealed)
    }

    /// The value of what [`Sealer::seal`] made.
    pub(crate) fn open(&self, sealed: &[u8]) -> Result<Vec<u8>> {
        let Some(key) = &self.key else { return Ok(sealed.to_vec()) };
        let (body, found) = sealed.split_last_chunk::<{ blake3::OUT_LEN }>().ok_or_else(other_secret)?;
        // Compares in constant time.
        if digest(key, body) != blake3::Hash::from_bytes(*found) {
            return Err(other_secret());
        }
        let (nonce, hidden) = body.split_at_checked(NONCE_BYTES).ok_or_else(other_secret)?;
        Ok(hide(key, nonce, hidden))
    }
}

/// Hides a value, or shows one that was hidden with the same key and nonce.
fn hide(key: &[u8; 32], nonce: &[u8], value: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; value.len()];
    blake3::Hasher::new_keyed(key).update(b"stream").update(nonce).finalize_xof().fill(&mut stream);
    stream.iter().zip(value).map(|(stream, value)| stream ^ value).collect()
}

fn digest(key: &[u8; 32], sealed: &[u8]) -> blake3::Hash {
    blake3::Hasher::new_keyed(key).update(b"digest").update(sealed).finalize()
}

fn damaged(value: &[u8]) -> Error {
    let cause = format!(
        "expected a unique id of {ID_BYTES} bytes from rank 0, found {} bytes of something else",
        value.len()
    );
    Error::usage(cause, "give all ranks the same CCL_SECRET and the same version of ccl")
}

fn other_secret() -> Error {
    let cause =
        "expected a unique id sealed with this rank's CCL_SECRET, found one sealed with another or none";
    Error::usage(cause, "give all ranks the same CCL_SECRET")
}

const IS_ID: u8 = 0;
const IS_REASON: u8 = 1;
const MOST_REASON_BYTES: usize = 300;
const NONCE_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Kind};

    fn sealer(secret: &str, key: &str) -> Sealer {
        Sealer::new(Secret::parse(secret).as_ref(), key)
    }

    #[test]
    fn ids_and_reasons_pass() {
        let id = [7; ID_BYTES];
        assert_eq!(open(&pack(&Ok(id))), Ok(id));
        let reason = Error::usage("no port is free", "free one");
        let error = open(&pack(&Err(reason))).unwrap_err();
        assert!(error.cause().contains("no port is free"), "{error}");
        let long = Error::usage("é".repeat(1000), "");
        assert!(pack(&Err(long)).len() <= MOST_REASON_BYTES + 1);
        for bad in [&[][..], &[0, 1, 2], &[9; 129]] {
            assert!(open(bad).is_err());
        }
    }

    #[test]
    fn only_the_same_secret_and_key_open_a_seal() {
        let sealed = sealer("hunter2", "k").seal(b"the value").unwrap();
        assert_eq!(sealer("hunter2", "k").open(&sealed).unwrap(), b"the value");
        assert!(!sealed.windows(5).any(|window| window == b"value"));
        assert_ne!(sealer("hunter2", "k").seal(b"the value").unwrap(), sealed);
        assert!(sealer("hunter3", "k").open(&sealed).is_err());
        assert!(sealer("hunter2", "j").open(&sealed).is_err());
        for place in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[place] ^= 1;
            assert!(sealer("hunter2", "k").open(&damaged).is_err(), "{place}");
        }
        assert!(sealer("hunter2", "k").open(&sealed[..40]).is_err());
        assert!(sealer("hunter2", "k").open(b"").is_err());
        let plain = Sealer::new(Config::default().secret(), "k");
        assert_eq!(plain.open(&plain.seal(b"x").unwrap()).unwrap(), b"x");
    }
}
