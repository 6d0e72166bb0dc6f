//! Which protocol the edges of a call follow. Both ends of an edge must agree on it, so it follows from what all ranks know:
//! the call, a setting that they share, and what they told each other of their devices when they joined.

use ccl_kernels::shape::Protocol;
use ccl_plan::cost::Multicast;
use ccl_plan::{Collective, Dtype, Shape};

use crate::config::{Choices, Config};
use crate::error::{Error, Result};

/// What all ranks of a communicator know of the ways between their devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ways {
    /// Every rank has a device, and each reaches all others.
    pub(crate) direct: bool,
    /// A line of 128 bytes that a warp stores at once is seen whole or not at all, wherever it goes.
    pub(crate) keep_lines: bool,
}

/// Which calls follow protocols whose slots hold lines. The same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(super) choices: Option<Choices>,
    pub(super) ways: Ways,
}

impl Lines {
    /// Payload of a slot of lines: what is long follows simple, so longer ones would stand empty.
    pub(crate) const SLOT_BYTES: usize = 32 << 10;

    /// Whether a call among `n` ranks does.
    pub(crate) fn serve(&self, asked: (Collective, Dtype, usize), n: u32) -> bool {
        of(asked, n, self.choices.as_ref(), self.ways) != Protocol::Simple
    }
}

/// What the setting allows, if it is set.
///
/// # Errors
///
/// It names something else than protocols.
pub(crate) fn allowed(config: &Config) -> Result<Option<Choices>> {
    let choices = config.proto();
    let unknown = |name: &&str| !Protocol::ALL.iter().any(|protocol| protocol.name() == *name);
    if let Some(name) = choices.and_then(|choices| choices.names().find(unknown)) {
        return Err(Error::usage(
            format!("expected CCL_PROTO to name protocols (simple, ll, ll128), found {name}"),
            "leave CCL_PROTO unset, or name protocols as in `simple`, `^ll128` or `allreduce:ll`",
        ));
    }
    Ok(choices.cloned())
}

/// Whether some call may follow the protocol.
pub(super) fn is_allowed(choices: Option<&Choices>, protocol: Protocol) -> bool {
    let allows = |collective: Collective| allows(choices, collective, protocol);
    protocol == Protocol::Simple || Collective::ALL.into_iter().any(allows)
}

/// The protocol of a call among `n` ranks. If none that is allowed can be had, simple.
pub(super) fn of(
    (collective, dtype, count): (Collective, Dtype, usize),
    n: u32,
    choices: Option<&Choices>,
    ways: Ways,
) -> Protocol {
    let blocks = match collective {
        Collective::Send | Collective::Recv => 1,
        _ if collective.input() == Shape::Whole => 1,
        _ => n as usize,
    };
    of_bytes(collective, count.saturating_mul(blocks * dtype.size_bytes()), choices, ways)
}

/// From how many bytes on ranks that have multicast memory store in it what they send to all others: those calls that follow
/// simple.
pub(crate) fn multicast(choices: Option<&Choices>, ways: Ways) -> Multicast {
    // Between these the protocol is the same, and behind simple comes no other.
    let changes = [0, LL_MOST_BYTES + 1, LL128_MOST_BYTES + 1];
    let from = |collective| {
        let simple = |bytes: &usize| of_bytes(collective, *bytes, choices, ways) == Protocol::Simple;
        changes.into_iter().find(simple).map(|bytes| bytes as u64)
    };
    Collective::ALL.into_iter().fold(Multicast::NONE, |all, one| all.with(one, from(one)))
}

/// The protocol of a call of so many bytes: of the vector, of all blocks, or of the message.
fn of_bytes(collective: Collective, bytes: usize, choices: Option<&Choices>, ways: Ways) -> Protocol {
    use Protocol::{Ll, Ll128, Simple};

    // Both ends of a message must come to the same.
    let collective = match collective {
        Collective::Recv => Collective::Send,
        other => other,
    };
    let may = |protocol: Protocol| {
        let can = match protocol {
            Simple => true,
            Ll => ways.direct,
            Ll128 => ways.direct && ways.keep_lines,
        };
        can && allows(choices, collective, protocol)
    };
    // Of uneven blocks each rank knows others.
    let bytes = if collective.uneven() { usize::MAX } else { bytes };
    let short = [(Ll, LL_MOST_BYTES), (Ll128, LL128_MOST_BYTES)];
    let short = short.into_iter().find(|(protocol, most)| bytes <= *most && may(*protocol));
    let short = short.map(|(protocol, _)| protocol);
    short.or_else(|| [Simple, Ll128, Ll].into_iter().find(|protocol| may(*protocol))).unwrap_or(Simple)
}

/// Whether the setting allows a collective the protocol.
pub(super) fn allows(choices: Option<&Choices>, collective: Collective, protocol: Protocol) -> bool {
    choices.is_none_or(|choices| choices.allows(collective.name(), protocol.name()))
}

// The bytes, of the vector or of all blocks, up to which ll and ll128 serve where all protocols are allowed: measured with 2 and 8
// ranks on one device (ADR 0097), between devices not yet.

/// A line of ll carries as much of flags as of data, so it pays only where latency is all.
const LL_MOST_BYTES: usize = 32 << 10;
/// Beyond this the fences and counters of simple do not show any more, and its threads have eight times as much under way.
const LL128_MOST_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use Protocol::{Ll, Ll128, Simple};

    use super::*;

    const ALL: Ways = Ways { direct: true, keep_lines: true };

    fn reduced(text: &str, bytes: usize, ways: Ways) -> Protocol {
        let config = Config::from_vars([("NCCL_PROTO", text)]).unwrap();
        let choices = allowed(&config).unwrap();
        of((Collective::AllReduce, Dtype::U8, bytes), 4, choices.as_ref(), ways)
    }

    #[test]
    fn short_calls_follow_ll_longer_ones_ll128_and_the_rest_simple() {
        let of = |bytes| reduced("", bytes, ALL);
        assert_eq!([0, LL_MOST_BYTES, LL_MOST_BYTES + 1].map(of), [Ll, Ll, Ll128]);
        assert_eq!([LL128_MOST_BYTES, LL128_MOST_BYTES + 1].map(of), [Ll128, Simple]);
        let torn = Ways { keep_lines: false, ..ALL };
        assert_eq!([LL_MOST_BYTES, LL_MOST_BYTES + 1].map(|bytes| reduced("", bytes, torn)), [Ll, Simple]);
        let proxied = Ways { direct: false, ..ALL };
        assert_eq!(["", "ll", "ll128"].map(|text| reduced(text, 1, proxied)), [Simple; 3]);
    }

    #[test]
    fn the_setting_leaves_protocols_out() {
        let long = 1 << 30;
        let of = |text| [1, LL_MOST_BYTES + 1, long].map(|bytes| reduced(text, bytes, ALL));
        assert_eq!(of("Simple"), [Simple; 3]);
        assert_eq!(of("LL"), [Ll; 3]);
        assert_eq!(of("LL128"), [Ll128; 3]);
        assert_eq!(of("^LL128"), [Ll, Simple, Simple]);
        assert_eq!(of("LL,LL128"), [Ll, Ll128, Ll128]);
        assert_eq!(of("simple;allreduce:ll"), [Ll; 3]);
        assert_eq!(reduced("ll128", 1, Ways { keep_lines: false, ..ALL }), Simple);
        let only = allowed(&Config::from_vars([("CCL_PROTO", "simple;broadcast:ll")]).unwrap()).unwrap();
        assert_eq!(Protocol::ALL.map(|protocol| is_allowed(only.as_ref(), protocol)), [true, true, false]);
        let error = allowed(&Config::from_vars([("CCL_PROTO", "ll,ll64")]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("found ll64"), "{error}");
    }

    #[test]
    fn both_ends_of_a_message_come_to_the_same() {
        let choices = allowed(&Config::from_vars([("CCL_PROTO", "simple;send:ll")]).unwrap()).unwrap();
        for count in [1, LL_MOST_BYTES / 8, LL_MOST_BYTES / 8 + 1] {
            for choices in [None, choices.as_ref()] {
                let of = |collective| of((collective, Dtype::F64, count), 7, choices, ALL);
                assert_eq!(of(Collective::Send), of(Collective::Recv), "{count}");
            }
        }
    }

    /// Whether a call of so many bytes follows simple is what its limit says.
    #[test]
    fn what_is_stored_once_is_what_follows_simple() {
        let limits =
            [0, 1, LL_MOST_BYTES, LL_MOST_BYTES + 1, LL128_MOST_BYTES, LL128_MOST_BYTES + 1, 1 << 30];
        let (mut seen, mut never) = (0, 0);
        for text in ["", "simple", "ll", "ll128", "^ll", "^ll128", "^simple", "simple;broadcast:ll"] {
            for keep_lines in [false, true] {
                let ways = Ways { keep_lines, ..ALL };
                let choices = allowed(&Config::from_vars([("CCL_PROTO", text)]).unwrap()).unwrap();
                let multicast = multicast(choices.as_ref(), ways);
                for collective in [Collective::Broadcast, Collective::AllReduce, Collective::AllGather] {
                    let from = multicast.from(collective);
                    never += usize::from(from.is_none());
                    for bytes in limits {
                        let simple = of_bytes(collective, bytes, choices.as_ref(), ways) == Simple;
                        let stored = from.is_some_and(|from| bytes as u64 >= from);
                        assert_eq!(simple, stored, "{collective} of {bytes} under `{text}`");
                        seen += usize::from(stored);
                    }
                }
                assert!(multicast.from(Collective::AllGatherV).is_none_or(|from| from == 0), "{text}");
            }
        }
        assert!(seen > 50 && never > 10, "{seen} {never}");
        let usual = multicast(None, ALL).from(Collective::AllReduce);
        assert_eq!(usual, Some(LL128_MOST_BYTES as u64 + 1));
    }

    #[test]
    fn what_ranks_know_differently_decides_nothing() {
        for count in [0, 1, 1 << 20] {
            assert_eq!(of((Collective::AllToAllV, Dtype::F32, count), 4, None, ALL), Simple);
        }
    }
}
