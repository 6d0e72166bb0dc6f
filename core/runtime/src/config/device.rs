//! Settings about devices: whether there are any, and which one is whose.

use crate::config::kind::{Kind, by_copy, find_word, word_of};

/// Whether the CUDA driver is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaUse {
    /// When somebody asks for a device.
    Auto,
    /// Never: there is no device.
    Off,
}

impl Kind for CudaUse {
    by_copy!(CudaUse, |value| *value);

    fn expected() -> String {
        "auto or off".into()
    }

    fn parse(text: &str) -> Option<CudaUse> {
        find_word(&USES, text)
    }

    fn print(&self) -> String {
        word_of(&USES, *self).into()
    }
}

/// Which device each rank of a host works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seats {
    /// Each rank the device of its number among the ranks of its host, around the end of the devices.
    EachItsOwn,
    /// One for each such number, around the end of the list; `None` works on host memory.
    Listed(Vec<Option<u32>>),
}

impl Seats {
    /// The device of the rank with this number among the ranks of its host, of so many devices. `None` works on
    /// host memory.
    pub fn device_of(&self, local_rank: u32, devices: impl FnOnce() -> u32) -> Option<u32> {
        match self {
            Seats::EachItsOwn => Some(local_rank % devices().max(1)),
            Seats::Listed(list) => list[local_rank as usize % list.len()],
        }
    }
}

impl Kind for Seats {
    type View<'a> = &'a Seats;

    fn expected() -> String {
        "`none`, the number of a device, `local`, or a list such as `0,1,none`".into()
    }

    fn parse(text: &str) -> Option<Seats> {
        if text.eq_ignore_ascii_case(LOCAL) {
            return Some(Seats::EachItsOwn);
        }
        let seat = |word: &str| match word.trim() {
            word if word.eq_ignore_ascii_case(NONE) => Some(None),
            number => number.parse().ok().map(Some),
        };
        text.split(',').map(seat).collect::<Option<Vec<_>>>().map(Seats::Listed)
    }

    fn view(&self) -> &Seats {
        self
    }

    fn print(&self) -> String {
        let seat = |seat: &Option<u32>| seat.map_or(NONE.to_owned(), |device| device.to_string());
        match self {
            Seats::EachItsOwn => LOCAL.to_owned(),
            Seats::Listed(list) => list.iter().map(seat).collect::<Vec<_>>().join(","),
        }
    }
}

const USES: [(&str, CudaUse); 2] = [("auto", CudaUse::Auto), ("off", CudaUse::Off)];
const LOCAL: &str = "local";
const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_go_round() {
        let seats = |text: &str| Seats::parse(text).unwrap();
        let four = |text: &str| [0, 1, 2, 3].map(|local| seats(text).device_of(local, || 3));
        assert_eq!(four("none"), [None; 4]);
        assert_eq!(four("2"), [Some(2); 4]);
        assert_eq!(four("local"), [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(four("1, None"), [Some(1), None, Some(1), None]);
        for text in ["none", "local", "0,1,none"] {
            assert_eq!(seats(text).print(), text);
        }
        for bad in ["", "-1", "gpu", "1,,2", "local,1"] {
            assert_eq!(Seats::parse(bad), None, "{bad}");
        }
    }
}
