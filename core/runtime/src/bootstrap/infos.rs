//! The infos of all ranks, as they travel: each as what it shares with the one before, and the rest.
//!
//! Ranks of one process and of one host say nearly the same, and every rank gets what all say: without
//! this, n ranks would get n² times what they have in common.

use serde::de::Error as _;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use super::machine::TABLE_BYTES;

/// Infos by rank, of at most [`TABLE_BYTES`] together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Infos(pub(crate) Vec<Vec<u8>>);

impl Serialize for Infos {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(self.0.len()))?;
        let mut last: &[u8] = &[];
        for info in &self.0 {
            let shared = info.iter().zip(last).take_while(|(a, b)| a == b).count();
            sequence.serialize_element(&(shared as u32, Bytes::new(&info[shared..])))?;
            last = info;
        }
        sequence.end()
    }
}

impl<'de> Deserialize<'de> for Infos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Infos, D::Error> {
        let packed = Vec::<(u32, ByteBuf)>::deserialize(deserializer)?;
        let mut infos: Vec<Vec<u8>> = Vec::with_capacity(packed.len());
        let mut total_bytes = 0;
        for (shared, rest) in packed {
            let last = infos.last().map_or(&[][..], Vec::as_slice);
            let shared = last.get(..shared as usize);
            let shared = shared.ok_or_else(|| D::Error::custom("an info shares more than there is"))?;
            total_bytes += shared.len() + rest.len();
            if total_bytes > TABLE_BYTES {
                return Err(D::Error::custom("infos are longer than a table may be"));
            }
            infos.push([shared, &rest].concat());
        }
        Ok(Infos(infos))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_ranks_have_in_common_travels_once() {
        let info = |rank: u32| [&[7; 500][..], &rank.to_le_bytes()].concat();
        let infos = Infos((0..100).map(info).collect());
        let bytes = postcard::to_stdvec(&infos).unwrap();
        assert!(bytes.len() < 500 + 100 * 8, "{} bytes", bytes.len());
        assert_eq!(postcard::from_bytes::<Infos>(&bytes).unwrap(), infos);
    }

    #[test]
    fn a_short_text_cannot_become_an_endless_table() {
        let long = vec![1; TABLE_BYTES / 2];
        let bytes = postcard::to_stdvec(&Infos(vec![long.clone(), long.clone(), long])).unwrap();
        assert!(bytes.len() < TABLE_BYTES / 2 + 64);
        assert!(postcard::from_bytes::<Infos>(&bytes).is_err());
        assert!(postcard::from_bytes::<Infos>(&[1, 1, 0]).is_err(), "shares what is not there");
    }

    proptest! {
        #[test]
        fn any_infos_come_back(infos in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..20), 0..20)) {
            let infos = Infos(infos);
            let bytes = postcard::to_stdvec(&infos).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Infos>(&bytes).unwrap(), infos);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = postcard::from_bytes::<Infos>(&bytes);
        }
    }
}
