//! Proof of the secret, before anything else is parsed.
//!
//! The root sends a nonce. The member answers with its own nonce, its rank and n, and a keyed hash
//! over all of them. The root answers with a keyed hash of its own. Both have then shown that they
//! know the secret, neither has sent it, and no answer is worth anything on another connection.
//!
//! These three messages have fixed sizes and a layout that stays the same in every version, so that
//! different versions can still name each other.

use crate::bootstrap::id::{Secret, UniqueId};
use crate::bootstrap::store::Sealer;

/// What both sides of a handshake know beforehand: the secret and the job.
#[derive(Clone)]
pub(crate) struct Key {
    secret: Secret,
    job: u64,
}

/// The root's opening: its version and nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Challenge {
    pub(crate) version: u16,
    pub(crate) nonce: [u8; 32],
}

/// The member's answer: who it says it is, and the proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) rank: u32,
    pub(crate) n: u32,
    nonce: [u8; 32],
    proof: [u8; 32],
}

/// The root's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The proof was right, and here is the root's.
    Welcome([u8; 32]),
    /// The proof was wrong.
    Denied,
}

impl Key {
    pub(crate) fn new(id: &UniqueId) -> Key {
        Key { secret: id.secret().clone(), job: id.job() }
    }

    /// Seals what only those who know the secret may read.
    pub(crate) fn sealer(&self) -> Sealer {
        Sealer::keyed(blake3::derive_key("ccl 2026 the head of several roots", &self.secret.0))
    }

    /// The keyed hash of everything said so far, spoken by `side`.
    fn proof(&self, side: &[u8; 6], root_nonce: &[u8; 32], hello: &Hello) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret.0);
        hasher.update(b"ccl join ").update(side).update(&self.job.to_le_bytes());
        hasher.update(root_nonce).update(&hello.nonce).update(&hello.version.to_le_bytes());
        hasher.update(&hello.rank.to_le_bytes()).update(&hello.n.to_le_bytes());
        hasher.finalize()
    }
}

impl Challenge {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&CHALLENGE[..], &self.version.to_le_bytes(), &self.nonce].concat()
    }

    pub(crate) fn parse(body: &[u8]) -> Option<Challenge> {
        let mut fields = Fields::of(body, &CHALLENGE, 38)?;
        Some(Challenge { version: u16::from_le_bytes(fields.take()), nonce: fields.take() })
    }
}

impl Hello {
    /// The answer to `challenge` of `rank` of `n`, with a fresh `nonce`.
    pub(crate) fn answering(
        challenge: &Challenge,
        key: &Key,
        version: u16,
        (rank, n): (u32, u32),
        nonce: [u8; 32],
    ) -> Hello {
        let mut hello = Hello { version, rank, n, nonce, proof: [0; 32] };
        hello.proof = *key.proof(MEMBER, &challenge.nonce, &hello).as_bytes();
        hello
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (version, rank, n) = (self.version.to_le_bytes(), self.rank.to_le_bytes(), self.n.to_le_bytes());
        [&HELLO[..], &version, &rank, &n, &self.nonce, &self.proof].concat()
    }

    pub(crate) fn parse(body: &[u8]) -> Option<Hello> {
        let mut fields = Fields::of(body, &HELLO, 78)?;
        Some(Hello {
            version: u16::from_le_bytes(fields.take()),
            rank: u32::from_le_bytes(fields.take()),
            n: u32::from_le_bytes(fields.take()),
            nonce: fields.take(),
            proof: fields.take(),
        })
    }

    /// The root's answer, given the nonce it sent. Takes the same time whatever the proof.
    pub(crate) fn judge(&self, key: &Key, root_nonce: &[u8; 32]) -> Answer {
        if key.proof(MEMBER, root_nonce, self) != blake3::Hash::from(self.proof) {
            return Answer::Denied;
        }
        Answer::Welcome(*key.proof(ROOT, root_nonce, self).as_bytes())
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Welcome(proof) => [&WELCOME[..], proof].concat(),
            Answer::Denied => [&DENIED[..], &[0; 32]].concat(),
        }
    }

    pub(crate) fn parse(body: &[u8]) -> Option<Answer> {
        if Fields::of(body, &DENIED, 36).is_some() {
            return Some(Answer::Denied);
        }
        Fields::of(body, &WELCOME, 36).map(|mut fields| Answer::Welcome(fields.take()))
    }

    /// Whether this is the root's proof for what `hello` answered.
    pub(crate) fn proves(&self, key: &Key, challenge: &Challenge, hello: &Hello) -> bool {
        match self {
            Answer::Welcome(proof) => key.proof(ROOT, &challenge.nonce, hello) == blake3::Hash::from(*proof),
            Answer::Denied => false,
        }
    }
}

/// What is left of a message of known size.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields after `tag`, if `body` has the tag and exactly `size_bytes` bytes.
    fn of(body: &'a [u8], tag: &[u8; 4], size_bytes: usize) -> Option<Fields<'a>> {
        (body.len() == size_bytes && body.starts_with(tag)).then(|| Fields(&body[4..]))
    }

    /// The next `N` bytes; the size checked in [`Fields::of`] covers all of them.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (head, rest) = self.0.split_at(N.min(self.0.len()));
        field[..head.len()].copy_from_slice(head);
        self.0 = rest;
        field
    }
}

/// The version of everything said after the handshake.
pub(crate) const VERSION: u16 = 5;

const CHALLENGE: [u8; 4] = *b"cclC";
const HELLO: [u8; 4] = *b"cclH";
const WELCOME: [u8; 4] = *b"cclW";
const DENIED: [u8; 4] = *b"cclD";
const MEMBER: &[u8; 6] = b"member";
const ROOT: &[u8; 6] = b"root  ";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> Key {
        Key { secret: Secret([byte; 32]), job: 7 }
    }

    #[test]
    fn both_sides_prove_the_secret() {
        let challenge = Challenge { version: VERSION, nonce: [1; 32] };
        let hello = Hello::answering(&challenge, &key(9), VERSION, (3, 8), [2; 32]);
        let hello = Hello::parse(&hello.encode()).unwrap();
        let answer = Answer::parse(&hello.judge(&key(9), &challenge.nonce).encode()).unwrap();
        assert!(answer.proves(&key(9), &challenge, &hello));
        assert!(!answer.proves(&key(8), &challenge, &hello));
        assert_eq!(hello.judge(&key(8), &challenge.nonce), Answer::Denied);
    }

    #[test]
    fn a_proof_serves_one_connection_rank_and_n() {
        let challenge = Challenge { version: VERSION, nonce: [1; 32] };
        let hello = Hello::answering(&challenge, &key(9), VERSION, (3, 8), [2; 32]);
        assert_eq!(hello.judge(&key(9), &[5; 32]), Answer::Denied);
        assert_eq!(Hello { rank: 4, ..hello }.judge(&key(9), &challenge.nonce), Answer::Denied);
        assert_eq!(Hello { n: 9, ..hello }.judge(&key(9), &challenge.nonce), Answer::Denied);
        assert_eq!(Hello { version: VERSION + 1, ..hello }.judge(&key(9), &challenge.nonce), Answer::Denied);
        let reflected = Answer::Welcome(hello.proof);
        assert!(!reflected.proves(&key(9), &challenge, &hello));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Challenge::parse(&body), Hello::parse(&body), Answer::parse(&body));
        }

        #[test]
        fn messages_survive_the_wire(version: u16, rank: u32, n: u32, nonce: [u8; 32], proof: [u8; 32]) {
            let hello = Hello { version, rank, n, nonce, proof };
            prop_assert_eq!(Hello::parse(&hello.encode()), Some(hello));
            let challenge = Challenge { version, nonce };
            prop_assert_eq!(Challenge::parse(&challenge.encode()), Some(challenge));
            let answer = Answer::Welcome(proof);
            prop_assert_eq!(Answer::parse(&answer.encode()), Some(answer));
            prop_assert_eq!(Hello::parse(&hello.encode()[..77]), None);
        }
    }
}
