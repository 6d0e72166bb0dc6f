//! The part of torch's TCPStore protocol that an exchange needs (torch 2.2 and later).
//!
//! A connection begins with VALIDATE and a number. Requests are a byte and its arguments; a key, a value
//! and a list are preceded by their length as 8 bytes, all numbers little-endian. SET has no answer, WAIT is
//! answered by a byte once all its keys are there, GET by the value.

/// A request, as a server reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The first of a connection.
    Validate,
    /// Makes a value known.
    Set { key: Vec<u8>, value: Vec<u8> },
    /// Asks for a value.
    Get { key: Vec<u8> },
    /// Asks to be told when keys are there.
    Wait { keys: Vec<Vec<u8>> },
}

/// What a server makes of the bytes that it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A request, and how many bytes it took.
    Request(Request, usize),
    /// The bytes are the beginning of a request.
    Partial,
    /// The bytes are something else, or larger than anything that an exchange sends.
    Foreign,
}

impl Request {
    /// The bytes of the request.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Request::Validate => [&[VALIDATE], MAGIC.to_le_bytes().as_slice()].concat(),
            Request::Set { key, value } => [vec![SET], encode_bytes(key), encode_bytes(value)].concat(),
            Request::Get { key } => [vec![GET], encode_bytes(key)].concat(),
            Request::Wait { keys } => {
                let count = (keys.len() as u64).to_le_bytes();
                let keys: Vec<_> = keys.iter().flat_map(|key| encode_bytes(key)).collect();
                [&[WAIT], count.as_slice(), &keys].concat()
            }
        }
    }

    /// Reads a request from the beginning of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Parsed {
        let mut reader = Reader { bytes, taken: 0 };
        match reader.request() {
            Ok(request) => Parsed::Request(request, reader.taken),
            Err(Stop::Partial) => Parsed::Partial,
            Err(Stop::Foreign) => Parsed::Foreign,
        }
    }
}

/// A length and the bytes.
pub(super) fn encode_bytes(bytes: &[u8]) -> Vec<u8> {
    [(bytes.len() as u64).to_le_bytes().as_slice(), bytes].concat()
}

struct Reader<'a> {
    bytes: &'a [u8],
    taken: usize,
}

enum Stop {
    Partial,
    Foreign,
}

impl Reader<'_> {
    fn request(&mut self) -> Result<Request, Stop> {
        match self.take(1)?[0] {
            VALIDATE => match self.take(4)? == MAGIC.to_le_bytes() {
                true => Ok(Request::Validate),
                false => Err(Stop::Foreign),
            },
            SET => Ok(Request::Set {
                key: self.counted(MOST_KEY_BYTES)?,
                value: self.counted(MOST_VALUE_BYTES)?,
            }),
            GET => Ok(Request::Get { key: self.counted(MOST_KEY_BYTES)? }),
            WAIT => {
                let count = self.length(MOST_KEYS)?;
                let keys = (0..count).map(|_| self.counted(MOST_KEY_BYTES)).collect::<Result<_, _>>()?;
                Ok(Request::Wait { keys })
            }
            _ => Err(Stop::Foreign),
        }
    }

    fn counted(&mut self, most: usize) -> Result<Vec<u8>, Stop> {
        let length = self.length(most)?;
        self.take(length).map(<[u8]>::to_vec)
    }

    fn length(&mut self, most: usize) -> Result<usize, Stop> {
        let bytes = self.take(8)?.try_into().map_err(|_| Stop::Partial)?;
        let length = usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| Stop::Foreign)?;
        if length > most { Err(Stop::Foreign) } else { Ok(length) }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Stop> {
        let taken = self.bytes.get(self.taken..self.taken + count).ok_or(Stop::Partial)?;
        self.taken += count;
        Ok(taken)
    }
}

/// The answer to WAIT: all keys are there.
pub(super) const STOP_WAITING: u8 = 0;

/// The largest value an exchange has.
pub(super) const MOST_VALUE_BYTES: usize = 4096;

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const MAGIC: u32 = 0x3C85_F7CE;
const MOST_KEY_BYTES: usize = 1024;
const MOST_KEYS: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> [Request; 4] {
        [
            Request::Validate,
            Request::Set { key: b"a key".into(), value: vec![1, 2, 3] },
            Request::Get { key: b"k".into() },
            Request::Wait { keys: vec![b"k".into(), b"".into()] },
        ]
    }

    #[test]
    fn the_bytes_are_those_of_torch() {
        assert_eq!(Request::Validate.encode(), [0, 0xCE, 0xF7, 0x85, 0x3C]);
        let set = Request::Set { key: b"ab".into(), value: vec![9] };
        assert_eq!(set.encode(), [1, 2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', 1, 0, 0, 0, 0, 0, 0, 0, 9]);
        let wait = Request::Wait { keys: vec![b"a".into()] };
        assert_eq!(wait.encode(), [6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'a']);
        assert_eq!(Request::Get { key: b"a".into() }.encode(), [3, 1, 0, 0, 0, 0, 0, 0, 0, b'a']);
    }

    #[test]
    fn requests_read_back_and_their_beginnings_are_partial() {
        for request in requests() {
            let mut bytes = request.encode();
            let length = bytes.len();
            for end in 0..length {
                assert_eq!(Request::parse(&bytes[..end]), Parsed::Partial, "{request:?} {end}");
            }
            bytes.push(77);
            assert_eq!(Request::parse(&bytes), Parsed::Request(request, length));
        }
    }

    #[test]
    fn foreign_bytes_are_refused_before_they_are_stored() {
        assert_eq!(Request::parse(b"GET / HTTP/1.1\r\n"), Parsed::Foreign);
        assert_eq!(Request::parse(&[0, 1, 2, 3, 4]), Parsed::Foreign);
        let huge = [[SET].as_slice(), &u64::MAX.to_le_bytes()].concat();
        assert_eq!(Request::parse(&huge), Parsed::Foreign);
        let many = [[WAIT].as_slice(), &17u64.to_le_bytes()].concat();
        assert_eq!(Request::parse(&many), Parsed::Foreign);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            if let Parsed::Request(request, taken) = Request::parse(&bytes) {
                prop_assert_eq!(request.encode(), &bytes[..taken]);
            }
        }
    }
}
