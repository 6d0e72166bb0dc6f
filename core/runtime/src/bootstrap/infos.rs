//! The infos of all ranks, as they travel: each as what it shares with the one before, and the rest.
//!
//! Ranks of one process and of one host say nearly the same, and every rank gets what all say: without
//! this, n ranks would get n² times what they have in common. Nor is it written out where they arrive: whoever
//! reads them goes through them in order.

use bytes::{Bytes, BytesMut};
use serde::de::Error as _;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::machine::TABLE_BYTES;

/// Infos by rank, of at most [`TABLE_BYTES`] together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Infos {
    parts: Vec<Part>,
    /// What the infos do not share, one after the other.
    own: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    /// How much it shares with the one before.
    shared: usize,
    /// Where its own bytes end.
    end: usize,
}

impl Infos {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Goes through them in order.
    pub(crate) fn each(&self) -> Each<'_> {
        Each { infos: self, index: 0, start: 0, info: Vec::new() }
    }

    /// That of one rank.
    pub(crate) fn get(&self, index: usize) -> Option<Vec<u8>> {
        let mut each = self.each();
        for _ in 0..index {
            each.next()?;
        }
        each.next().map(|info| info.bytes.to_vec())
    }

    /// All of them, written out.
    pub(crate) fn to_vec(&self) -> Vec<Bytes> {
        let mut all = BytesMut::with_capacity(self.total_bytes());
        let mut ends = Vec::with_capacity(self.len());
        let mut each = self.each();
        while let Some(info) = each.next() {
            all.extend_from_slice(info.bytes);
            ends.push(info.bytes.len());
        }
        ends.into_iter().map(|bytes| all.split_to(bytes).freeze()).collect()
    }

    /// Bytes of all together, written out.
    pub(crate) fn total_bytes(&self) -> usize {
        self.own.len() + self.parts.iter().map(|part| part.shared).sum::<usize>()
    }

    /// None yet, with room for as many as there are of `others`.
    pub(crate) fn with_capacity(others: &Infos) -> Infos {
        Infos { parts: Vec::with_capacity(others.len()), own: Vec::with_capacity(others.own.len()) }
    }

    /// Adds one that shares so many of its first bytes with the one before.
    pub(crate) fn push(&mut self, shared: usize, own: &[u8]) {
        self.own.extend_from_slice(own);
        self.parts.push(Part { shared, end: self.own.len() });
    }
}

/// An info as one goes through them.
#[derive(Clone, Copy)]
pub(crate) struct Info<'a> {
    pub(crate) bytes: &'a [u8],
    /// How many of the first bytes are those of the one before.
    pub(crate) shared: usize,
}

/// Goes through infos in order.
pub(crate) struct Each<'a> {
    infos: &'a Infos,
    index: usize,
    /// Where the own bytes of the next one start.
    start: usize,
    info: Vec<u8>,
}

impl Each<'_> {
    /// The next one; good until the one after it is asked for.
    pub(crate) fn next(&mut self) -> Option<Info<'_>> {
        let Part { shared, end } = *self.infos.parts.get(self.index)?;
        self.info.truncate(shared);
        self.info.extend_from_slice(&self.infos.own[self.start..end]);
        (self.index, self.start) = (self.index + 1, end);
        Some(Info { bytes: &self.info, shared })
    }
}

impl<B: AsRef<[u8]>> FromIterator<B> for Infos {
    fn from_iter<I: IntoIterator<Item = B>>(infos: I) -> Infos {
        let mut all = Infos::default();
        let mut last: Option<B> = None;
        for info in infos {
            let before = last.as_ref().map_or(&[][..], B::as_ref);
            let shared = info.as_ref().iter().zip(before).take_while(|(a, b)| a == b).count();
            all.push(shared, &info.as_ref()[shared..]);
            last = Some(info);
        }
        all
    }
}

impl Serialize for Infos {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(self.len()))?;
        let mut start = 0;
        for Part { shared, end } in &self.parts {
            sequence.serialize_element(&(*shared as u32, serde_bytes::Bytes::new(&self.own[start..*end])))?;
            start = *end;
        }
        sequence.end()
    }
}

impl<'de> Deserialize<'de> for Infos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Infos, D::Error> {
        let packed = Vec::<(u32, &[u8])>::deserialize(deserializer)?;
        let mut infos = Infos {
            parts: Vec::with_capacity(packed.len()),
            own: Vec::with_capacity(packed.iter().map(|(_, own)| own.len()).sum()),
        };
        let (mut last_bytes, mut total_bytes) = (0, 0);
        for (shared, own) in packed {
            let shared = shared as usize;
            if shared > last_bytes {
                return Err(D::Error::custom("an info shares more than there is"));
            }
            last_bytes = shared + own.len();
            total_bytes += last_bytes;
            if total_bytes > TABLE_BYTES {
                return Err(D::Error::custom("infos are longer than a table may be"));
            }
            infos.push(shared, own);
        }
        Ok(infos)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_ranks_have_in_common_travels_once() {
        let info = |rank: u32| [&[7; 500][..], &rank.to_le_bytes()].concat();
        let infos: Infos = (0..100).map(info).collect();
        let bytes = postcard::to_stdvec(&infos).unwrap();
        assert!(bytes.len() < 500 + 100 * 8, "{} bytes", bytes.len());
        assert_eq!(postcard::from_bytes::<Infos>(&bytes).unwrap(), infos);
    }

    #[test]
    fn a_short_text_cannot_become_an_endless_table() {
        let long = vec![1; TABLE_BYTES / 2];
        let bytes =
            postcard::to_stdvec(&[long.clone(), long.clone(), long].into_iter().collect::<Infos>()).unwrap();
        assert!(bytes.len() < TABLE_BYTES / 2 + 64);
        assert!(postcard::from_bytes::<Infos>(&bytes).is_err());
        assert!(postcard::from_bytes::<Infos>(&[1, 1, 0]).is_err(), "shares what is not there");
    }

    proptest! {
        #[test]
        fn any_infos_come_back(infos in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..20), 0..20)) {
            let packed: Infos = infos.iter().collect();
            let bytes = postcard::to_stdvec(&packed).unwrap();
            let unpacked = postcard::from_bytes::<Infos>(&bytes).unwrap();
            prop_assert_eq!(&unpacked, &packed);
            prop_assert_eq!(unpacked.total_bytes(), infos.iter().map(Vec::len).sum::<usize>());
            prop_assert_eq!(unpacked.get(infos.len()), None);
            prop_assert!((0..).zip(&infos).all(|(index, info)| unpacked.get(index).as_ref() == Some(info)));
            prop_assert_eq!(unpacked.to_vec(), infos);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = postcard::from_bytes::<Infos>(&bytes);
        }
    }
}
