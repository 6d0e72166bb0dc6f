//! What a tuner plugin advises: stands above the cost model and above rules, where it fits.

use alloc::string::String;
use alloc::vec::Vec;

use super::Choice;
use crate::collective::Collective;
use crate::fingerprint::Fingerprint;

/// The advice of one tuner. Without any it is as if there were no tuner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advice {
    /// The tuner's name.
    pub by: String,
    /// What it advises; ranges of sizes of one collective do not overlap.
    pub given: Vec<Advised>,
}

/// For calls of `collective` from one size to another: this choice, if the caller's wishes, the level and the number of
/// ranks allow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advised {
    /// Which calls.
    pub collective: Collective,
    /// The smallest size in bytes; as for [`Selection::choose`](super::Selection::choose).
    pub from: u64,
    /// The largest.
    pub up_to: u64,
    /// How.
    pub choice: Choice,
    /// Bytes to cut data at; 0: as always.
    pub chunk_bytes: u64,
}

impl Advice {
    /// What it says of one size.
    pub fn on(&self, collective: Collective, bytes: u64) -> Option<&Advised> {
        self.of(collective).find(|advised| (advised.from..=advised.up_to).contains(&bytes))
    }

    /// The last sizes before it changes its mind.
    pub(super) fn bounds(&self, collective: Collective) -> impl Iterator<Item = u64> {
        self.of(collective).flat_map(|advised| advised.from.checked_sub(1).into_iter().chain([advised.up_to]))
    }

    pub(super) fn add_to(&self, fingerprint: &mut Fingerprint) {
        fingerprint.bytes(self.by.as_bytes());
        for Advised { collective, from, up_to, choice, chunk_bytes } in &self.given {
            let how = [choice.algorithm as u64, choice.channels.into(), *chunk_bytes];
            [*collective as u64, *from, *up_to]
                .into_iter()
                .chain(how)
                .for_each(|word| fingerprint.word(word));
        }
    }

    fn of(&self, collective: Collective) -> impl Iterator<Item = &Advised> {
        self.given.iter().filter(move |advised| advised.collective == collective)
    }
}
