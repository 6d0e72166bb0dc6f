//! How much is logged, and about what.

use crate::config::kind::{Kind, by_copy, find_word, split_names, word_of};

/// How much is logged. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    None,
    /// The version, once.
    Version,
    /// What the user should change.
    Warn,
    /// What was chosen, and why.
    Info,
    /// Every step.
    Trace,
}

impl Level {
    /// The level with this number, as in `Level::Warn as u8`.
    pub fn from_number(number: u8) -> Option<Level> {
        LEVELS.iter().map(|&(_, level)| level).find(|&level| level as u8 == number)
    }
}

impl Kind for Level {
    by_copy!(Level, |value| *value);

    fn expected() -> String {
        "NONE, VERSION, WARN, INFO or TRACE".into()
    }

    fn parse(text: &str) -> Option<Level> {
        find_word(&LEVELS, text)
    }

    fn print(&self) -> String {
        word_of(&LEVELS, *self).into()
    }
}

/// A part of the library, as logs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Subsystem {
    /// Making and ending communicators.
    Init,
    /// Operations.
    Coll,
    /// Direct copies between devices.
    P2p,
    /// Shared memory.
    Shm,
    /// The network.
    Net,
    /// The topology.
    Graph,
    /// Selection of algorithms and protocols.
    Tuning,
    /// Settings.
    Env,
    /// Memory.
    Alloc,
    /// Calls through the C boundary.
    Call,
    /// The progress thread.
    Proxy,
    /// Multicast and reduction in the switch.
    Nvls,
    /// The slow network used during rendezvous.
    Bootstrap,
    /// Registration of memory.
    Reg,
    /// Profiler plugins.
    Profile,
    /// Watching and diagnosing.
    Ras,
    /// Aborting and destroying.
    Destroy,
}

impl Subsystem {
    /// The word by which logs and settings name it.
    pub fn word(self) -> &'static str {
        word_of(&SUBSYSTEMS, self)
    }
}

/// A set of subsystems, written `[^]NAME,...` or `ALL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems(u32);

impl Subsystems {
    /// All of them.
    pub const ALL: Subsystems = Subsystems((1 << SUBSYSTEMS.len()) - 1);

    /// Whether `subsystem` is in the set.
    pub fn contains(self, subsystem: Subsystem) -> bool {
        self.0 & bit(subsystem) != 0
    }

    /// The set as bits, one per subsystem.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The set that has these bits; bits that stand for no subsystem are dropped.
    pub fn from_bits(bits: u32) -> Subsystems {
        Subsystems(bits & Subsystems::ALL.0)
    }
}

impl Kind for Subsystems {
    by_copy!(Subsystems, |value| *value);

    fn expected() -> String {
        let words: Vec<_> = SUBSYSTEMS.iter().map(|&(word, _)| word).collect();
        format!("`ALL` or a list of {}; `^` first leaves them out", words.join(", "))
    }

    fn parse(text: &str) -> Option<Subsystems> {
        let (exclude, list) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let named = split_names(list).iter().map(|name| named_bits(name)).sum::<Option<BitUnion>>()?;
        Some(Subsystems(if exclude { !named.0 & Subsystems::ALL.0 } else { named.0 }))
    }

    fn print(&self) -> String {
        if *self == Subsystems::ALL {
            return "ALL".into();
        }
        let listed = SUBSYSTEMS.iter().filter(|(_, subsystem)| self.contains(*subsystem));
        listed.map(|&(word, _)| word).collect::<Vec<_>>().join(",")
    }
}

/// Bits joined by "or" when summed.
#[derive(Clone, Copy)]
struct BitUnion(u32);

impl std::iter::Sum for BitUnion {
    fn sum<I: Iterator<Item = BitUnion>>(parts: I) -> BitUnion {
        parts.fold(BitUnion(0), |all, part| BitUnion(all.0 | part.0))
    }
}

fn named_bits(name: &str) -> Option<BitUnion> {
    if name.eq_ignore_ascii_case("ALL") {
        return Some(BitUnion(Subsystems::ALL.0));
    }
    find_word(&SUBSYSTEMS, name).or_else(|| find_word(&SYNONYMS, name)).map(|one| BitUnion(bit(one)))
}

fn bit(subsystem: Subsystem) -> u32 {
    1 << subsystem as u32
}

const LEVELS: [(&str, Level); 6] = [
    ("NONE", Level::None),
    ("VERSION", Level::Version),
    ("WARN", Level::Warn),
    ("INFO", Level::Info),
    // NCCL's ABORT lies between INFO and TRACE and is said by nobody here.
    ("ABORT", Level::Info),
    ("TRACE", Level::Trace),
];

const SUBSYSTEMS: [(&str, Subsystem); 17] = [
    ("INIT", Subsystem::Init),
    ("COLL", Subsystem::Coll),
    ("P2P", Subsystem::P2p),
    ("SHM", Subsystem::Shm),
    ("NET", Subsystem::Net),
    ("GRAPH", Subsystem::Graph),
    ("TUNING", Subsystem::Tuning),
    ("ENV", Subsystem::Env),
    ("ALLOC", Subsystem::Alloc),
    ("CALL", Subsystem::Call),
    ("PROXY", Subsystem::Proxy),
    ("NVLS", Subsystem::Nvls),
    ("BOOTSTRAP", Subsystem::Bootstrap),
    ("REG", Subsystem::Reg),
    ("PROFILE", Subsystem::Profile),
    ("RAS", Subsystem::Ras),
    ("DESTROY", Subsystem::Destroy),
];

/// NCCL's finer division of ALLOC.
const SYNONYMS: [(&str, Subsystem); 1] = [("ALLOC_HOST", Subsystem::Alloc)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_lists_or_complements() {
        let parse = |text| Subsystems::parse(text).unwrap();
        assert!(parse("init,net").contains(Subsystem::Net));
        assert!(!parse("init,net").contains(Subsystem::Shm));
        assert!(!parse("^NET").contains(Subsystem::Net));
        assert!(parse("^NET").contains(Subsystem::Destroy));
        assert_eq!(parse("ALL"), Subsystems::ALL);
        assert_eq!(parse("NET,INIT,NET").print(), "INIT,NET");
        assert_eq!(Subsystems::parse("INIT,NOPE"), None);
    }

    #[test]
    fn levels_are_ordered_and_numbered() {
        assert!(Level::Version < Level::Warn && Level::Info < Level::Trace);
        assert_eq!(Level::parse("info"), Some(Level::Info));
        assert_eq!(Level::parse("ABORT"), Some(Level::Info));
        for (_, level) in LEVELS {
            assert_eq!(Level::from_number(level as u8), Some(level));
        }
    }
}
