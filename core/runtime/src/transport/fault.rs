//! Faults on purpose (`CCL_FAULT`): for tests of what notices them.
//!
//! A specification is a list of rules separated by `;`, each `kind` or `kind:key=value,…`:
//!
//! | kind | what | keys |
//! |---|---|---|
//! | `delay` | a message is seen `us` microseconds late, and up to `jitter` more | `us`, `jitter` |
//! | `drop` | both ends find the connection broken after `after` messages | `after` |
//! | `stall` | the sender gets no credit after `after` messages | `after` |
//! | `flip` | one bit of the first non-empty message from number `after` on | `after` |
//!
//! `from` and `to` choose the edge (both default to all ranks), `seed` the random numbers:
//! `flip:from=0,to=1,after=3,seed=7; delay:us=200`. Messages keep their order.

use std::ptr::NonNull;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use super::edge::{EdgeName, EdgeReceive, EdgeSend};
use super::{ReceiveEdge, SendEdge, Slot};
use crate::error::{Error, Result};

/// One fault, on the edges it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRule {
    /// What goes wrong.
    pub kind: FaultKind,
    /// On edges from this rank; `None`: from any.
    pub from: Option<Rank>,
    /// On edges to this rank; `None`: to any.
    pub to: Option<Rank>,
    /// After this many messages of an edge.
    pub after: u64,
    /// Where random numbers begin.
    pub seed: u64,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Messages are seen late.
    Delay {
        /// At least this late,
        by: Duration,
        /// and up to this much later.
        jitter: Duration,
    },
    /// Both ends find the connection broken.
    Drop,
    /// The sender gets no credit any more.
    Stall,
    /// A bit changes on the way.
    Flip,
}

impl FaultRule {
    /// Parses a specification, as in the module's text. Empty: no rules.
    ///
    /// Errors: usage, naming the rule.
    pub fn parse(specification: &str) -> Result<Vec<FaultRule>> {
        let rules = specification.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        rules.map(|rule| parse_rule(rule).map_err(|words| refused(rule, &words))).collect()
    }

    fn concerns(&self, name: &EdgeName) -> bool {
        self.from.is_none_or(|rank| rank == name.from) && self.to.is_none_or(|rank| rank == name.to)
    }
}

/// Faults at an edge's producer.
pub(super) struct FaultySend {
    inner: SendEdge,
    name: EdgeName,
    rules: Vec<FaultRule>,
    posted: u64,
    acquired: usize,
}

/// Faults at an edge's consumer.
pub(super) struct FaultyReceive {
    inner: ReceiveEdge,
    name: EdgeName,
    rules: Vec<FaultRule>,
    released: u64,
    /// When the message at the head may be seen.
    due: Option<Instant>,
}

/// `edge` with the rules that concern it.
pub(super) fn around_send(edge: SendEdge, name: EdgeName, rules: &[FaultRule]) -> SendEdge {
    let rules: Vec<_> = rules.iter().filter(|rule| rule.concerns(&name)).copied().collect();
    if rules.is_empty() {
        return edge;
    }
    SendEdge::around(FaultySend { inner: edge, name, rules, posted: 0, acquired: 0 })
}

/// `edge` with the rules that concern it.
pub(super) fn around_receive(edge: ReceiveEdge, name: EdgeName, rules: &[FaultRule]) -> ReceiveEdge {
    let rules: Vec<_> = rules.iter().filter(|rule| rule.concerns(&name)).copied().collect();
    if rules.is_empty() {
        return edge;
    }
    ReceiveEdge::around(FaultyReceive { inner: edge, name, rules, released: 0, due: None })
}

impl EdgeSend for FaultySend {
    fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        for rule in self.rules.iter().filter(|rule| self.posted >= rule.after) {
            match rule.kind {
                FaultKind::Drop => return Err(dropped(&self.name, self.posted, self.name.to)),
                FaultKind::Stall => return Ok(None),
                _ => {}
            }
        }
        self.acquired = bytes;
        self.inner.acquire(bytes)
    }

    fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        let flips = |rule: &FaultRule| rule.kind == FaultKind::Flip && self.posted >= rule.after;
        if bytes > 0
            && let Some(rule) = self.rules.iter().position(flips)
            && let Some(slot) = self.inner.slot(self.acquired)?
        {
            let bit = mixed(self.rules[rule].seed, self.posted) as usize % (8 * bytes);
            slot[bit / 8] ^= 1 << (bit % 8);
            self.rules.remove(rule);
        }
        self.posted += 1;
        self.inner.post(bytes, tag)
    }

    fn progress(&mut self) -> Result<()> {
        self.inner.progress()
    }

    fn idle(&self) -> bool {
        self.inner.idle()
    }
}

impl EdgeReceive for FaultyReceive {
    fn peek(&mut self) -> Result<Option<Slot>> {
        let drops = |rule: &FaultRule| rule.kind == FaultKind::Drop && self.released >= rule.after;
        if self.rules.iter().any(drops) {
            return Err(dropped(&self.name, self.released, self.name.from));
        }
        let Some(slot) = self.inner.peek()? else { return Ok(None) };
        let now = Instant::now();
        let due = *self.due.get_or_insert_with(|| now + lateness(&self.rules, self.released));
        Ok((due <= now).then_some(slot))
    }

    fn release(&mut self) -> Result<()> {
        self.due = None;
        self.released += 1;
        self.inner.release()
    }

    fn progress(&mut self) -> Result<()> {
        self.inner.progress()
    }
}

/// How late a message is seen.
fn lateness(rules: &[FaultRule], message: u64) -> Duration {
    let late = |rule: &FaultRule| match rule.kind {
        FaultKind::Delay { by, jitter } if message >= rule.after => {
            let share = mixed(rule.seed, message) as u32;
            by + jitter.mul_f64(f64::from(share) / f64::from(u32::MAX))
        }
        _ => Duration::ZERO,
    };
    rules.iter().map(late).sum()
}

fn parse_rule(rule: &str) -> Result<FaultRule, String> {
    let (kind, keys) = rule.split_once(':').unwrap_or((rule, ""));
    let mut parsed = FaultRule { kind: FaultKind::Drop, from: None, to: None, after: 0, seed: 0 };
    let (mut by, mut jitter) = (Duration::ZERO, Duration::ZERO);
    for pair in keys.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("expected key=value, found {pair}"))?;
        match key.trim() {
            "from" => parsed.from = Some(Rank(number(value)?)),
            "to" => parsed.to = Some(Rank(number(value)?)),
            "after" => parsed.after = number(value)?,
            "seed" => parsed.seed = number(value)?,
            "us" => by = Duration::from_micros(number(value)?),
            "jitter" => jitter = Duration::from_micros(number(value)?),
            other => return Err(format!("expected from, to, after, seed, us or jitter, found {other}")),
        }
    }
    parsed.kind = match kind.trim() {
        "delay" => FaultKind::Delay { by, jitter },
        "drop" => FaultKind::Drop,
        "stall" => FaultKind::Stall,
        "flip" => FaultKind::Flip,
        other => return Err(format!("expected delay, drop, stall or flip, found {other}")),
    };
    Ok(parsed)
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("expected a number, found {text}"))
}

#[cold]
fn refused(rule: &str, words: &str) -> Error {
    Error::usage(format!("fault rule \"{rule}\": {words}"), "see CCL_FAULT in the manual")
}

#[cold]
fn dropped(name: &EdgeName, messages: u64, peer: Rank) -> Error {
    let cause = format!("{name} was dropped after {messages} messages");
    Error::new(crate::Fault::Network, cause, "it is a fault on purpose: unset CCL_FAULT").with_peer(peer)
}

/// A random number that depends on both (the finaliser of SplitMix64).
fn mixed(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed() {
        let rules =
            FaultRule::parse("flip:from=0,to=1,after=3,seed=7; delay:us=200, jitter=50;;stall").unwrap();
        assert_eq!(rules.len(), 3);
        let flip =
            FaultRule { kind: FaultKind::Flip, from: Some(Rank(0)), to: Some(Rank(1)), after: 3, seed: 7 };
        assert_eq!(rules[0], flip);
        let (by, jitter) = (Duration::from_micros(200), Duration::from_micros(50));
        assert_eq!(rules[1].kind, FaultKind::Delay { by, jitter });
        assert_eq!((rules[2].kind, rules[2].from), (FaultKind::Stall, None));
    }

    #[test]
    fn a_bad_rule_is_named() {
        for bad in ["explode", "flip:after", "flip:after=x", "drop:when=1"] {
            let error = FaultRule::parse(&format!("stall; {bad}")).unwrap_err();
            assert!(error.cause().contains(bad), "{error}");
        }
    }

    #[test]
    fn lateness_stays_within_its_jitter() {
        let rules = FaultRule::parse("delay:us=100,jitter=50,after=2,seed=1").unwrap();
        assert_eq!(lateness(&rules, 1), Duration::ZERO);
        for message in 2..100 {
            let late = lateness(&rules, message).as_micros();
            assert!((100..=150).contains(&late), "{late}");
        }
    }
}
