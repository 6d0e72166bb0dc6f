//! From what all boards show to who is at fault: a pure function.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::bootstrap::words;
use crate::observe::board::{Signature, Snapshot};

/// Why an operation is late, and what every rank showed.
///
/// As JSON this is a document of schema [`SCHEMA`]; fields are added, never renamed or removed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name and version of the schema, [`SCHEMA`].
    pub schema: String,
    /// The operation that was reported late.
    pub sequence: u64,
    /// The operation that is to blame: this one, or one before it.
    pub at: u64,
    /// Whose fault it is.
    pub verdict: Verdict,
    /// The verdict in one sentence.
    pub text: String,
    /// What every rank showed, by rank.
    pub ranks: Vec<RankState>,
}

/// Whose fault it is that an operation is late.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// These ranks' processes are gone.
    Gone {
        /// The ranks at fault.
        ranks: Vec<u32>,
    },
    /// These ranks entered something else than the others.
    Mismatch {
        /// The ranks at fault; all of them if no signature has a majority.
        ranks: Vec<u32>,
        /// Every signature that was entered, with its ranks; the most common first.
        signatures: Vec<Entered>,
    },
    /// These ranks' processes are there, but do not answer.
    Silent {
        /// The ranks at fault.
        ranks: Vec<u32>,
    },
    /// These ranks left the communicator before the operation.
    Left {
        /// The ranks at fault.
        ranks: Vec<u32>,
    },
    /// These ranks answer, but their callers have not entered the operation.
    NeverEntered {
        /// The ranks at fault.
        ranks: Vec<u32>,
    },
    /// All entered the same; these ranks are what the others wait for.
    Stuck {
        /// The ranks at the end of the chain of waiting, or in its circle.
        ranks: Vec<u32>,
    },
    /// All entered the same and nobody waits any more: it was only slow.
    Slow,
}

/// Ranks that entered one signature.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entered {
    /// The signature.
    pub signature: Signature,
    /// The ranks that entered it.
    pub ranks: Vec<u32>,
}

/// What is known of one rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankState {
    /// The rank.
    pub rank: u32,
    /// Its process and host, in words.
    pub place: String,
    /// Whether it answered.
    pub presence: Presence,
    /// The newest operation entered, if known.
    pub last_entered: Option<u64>,
    /// The newest operation completed, if known.
    pub last_completed: Option<u64>,
    /// The instruction it waits at, if it waits.
    pub instruction: Option<u32>,
    /// The rank it waits for, if it waits.
    pub waiting_for: Option<u32>,
    /// What it entered as operation [`Report::at`], if it did and still remembers.
    pub signature: Option<Signature>,
    /// The operations it remembers; not part of the document.
    #[serde(skip)]
    pub(crate) recent: Vec<(u64, Signature)>,
}

/// Whether a rank answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "presence", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Presence {
    /// It answered.
    Answering,
    /// It did not answer in time.
    Silent {
        /// What the system says about its process, in words.
        process: String,
        /// Time since it was last heard of, ms.
        silent_ms: u64,
    },
    /// It left the communicator.
    Left,
    /// Its process is gone.
    Gone,
}

impl RankState {
    /// A rank about which nothing but its presence is known.
    pub(crate) fn new(rank: u32, place: String, presence: Presence) -> RankState {
        RankState {
            rank,
            place,
            presence,
            last_entered: None,
            last_completed: None,
            instruction: None,
            waiting_for: None,
            signature: None,
            recent: Vec::new(),
        }
    }

    /// The same with what its board showed.
    pub(crate) fn showing(mut self, state: Snapshot) -> RankState {
        self.last_entered = state.last_entered;
        self.last_completed = state.last_completed;
        self.instruction = state.waiting.map(|waiting| waiting.instruction);
        self.waiting_for = state.waiting.map(|waiting| waiting.peer);
        self.recent = state.recent;
        self
    }

    /// Whether it has an operation in flight.
    fn busy(&self) -> bool {
        self.last_entered > self.last_completed
    }

    /// The oldest operation in flight.
    fn front(&self) -> Option<u64> {
        let oldest = || self.recent.first().map(|(sequence, _)| *sequence).or(self.last_entered);
        let next = self.last_completed.map_or_else(oldest, |last| last.checked_add(1));
        next.filter(|_| self.busy() && self.presence == Presence::Answering)
    }

    fn entered(&self, sequence: u64) -> bool {
        self.last_entered.is_some_and(|last| last >= sequence)
    }

    fn completed(&self, sequence: u64) -> bool {
        self.last_completed.is_some_and(|last| last >= sequence)
    }
}

impl Report {
    /// The document as one line of JSON.
    pub fn to_json(&self) -> String {
        // Plain structures with string keys: serialisation cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The rank to name first, if a rank is to blame and the blame is not shared by all.
    pub fn culprit(&self) -> Option<u32> {
        match &self.verdict {
            Verdict::Mismatch { ranks, signatures } => {
                let entered: usize = signatures.iter().map(|entered| entered.ranks.len()).sum();
                ranks.first().copied().filter(|_| ranks.len() < entered)
            }
            Verdict::Gone { ranks }
            | Verdict::Silent { ranks }
            | Verdict::Left { ranks }
            | Verdict::NeverEntered { ranks }
            | Verdict::Stuck { ranks } => ranks.first().copied(),
            Verdict::Slow => None,
        }
    }
}

/// Judges why operation `sequence` is late, given what every rank showed.
///
/// The oldest operation that any rank is still in decides, unless ranks disagree about `sequence`
/// only: what is late after it is a consequence.
/// A process that is gone comes first, then ranks that disagree, then silence, then ranks that left
/// or never came, then the end of the chain of waiting.
pub fn verdict(sequence: u64, mut ranks: Vec<RankState>) -> Report {
    let oldest = ranks.iter().filter_map(RankState::front).fold(sequence, u64::min);
    let newer = !disagree(oldest, &ranks) && disagree(sequence, &ranks);
    let at = if newer { sequence } else { oldest };
    for rank in &mut ranks {
        rank.signature =
            rank.recent.iter().find(|(entered, _)| *entered == at).map(|(_, signature)| *signature);
    }
    let verdict = blame(at, &ranks);
    let text = in_words(at, &verdict, &ranks);
    Report { schema: SCHEMA.into(), sequence, at, verdict, text, ranks }
}

/// Whether two ranks entered an operation differently.
fn disagree(sequence: u64, ranks: &[RankState]) -> bool {
    let signature = |rank: &RankState| {
        rank.recent.iter().find(|(entered, _)| *entered == sequence).map(|(_, signature)| *signature)
    };
    let mut signatures = ranks.iter().filter_map(signature);
    signatures.next().is_some_and(|first| signatures.any(|other| other != first))
}

fn blame(at: u64, ranks: &[RankState]) -> Verdict {
    let those = |wanted: &dyn Fn(&RankState) -> bool| -> Option<Vec<u32>> {
        let found: Vec<u32> = ranks.iter().filter(|rank| wanted(rank)).map(|rank| rank.rank).collect();
        (!found.is_empty()).then_some(found)
    };
    if let Some(ranks) = those(&|rank| rank.presence == Presence::Gone) {
        return Verdict::Gone { ranks };
    }
    if let Some(mismatch) = mismatch(ranks) {
        return mismatch;
    }
    if let Some(ranks) = those(&|rank| matches!(rank.presence, Presence::Silent { .. })) {
        return Verdict::Silent { ranks };
    }
    if let Some(ranks) = those(&|rank| rank.presence == Presence::Left && !rank.entered(at)) {
        return Verdict::Left { ranks };
    }
    if let Some(ranks) = those(&|rank| !rank.entered(at)) {
        return Verdict::NeverEntered { ranks };
    }
    if ranks.iter().all(|rank| rank.completed(at) || rank.presence == Presence::Left) {
        return Verdict::Slow;
    }
    Verdict::Stuck { ranks: end_of_waiting(at, ranks) }
}

/// The odd signatures among those entered, if there are several.
fn mismatch(ranks: &[RankState]) -> Option<Verdict> {
    let mut groups: BTreeMap<Signature, Vec<u32>> = BTreeMap::new();
    for rank in ranks {
        if let Some(signature) = rank.signature {
            groups.entry(signature).or_default().push(rank.rank);
        }
    }
    if groups.len() < 2 {
        return None;
    }
    let mut signatures: Vec<Entered> =
        groups.into_iter().map(|(signature, ranks)| Entered { signature, ranks }).collect();
    signatures
        .sort_by_key(|entered| (std::cmp::Reverse(entered.ranks.len()), entered.ranks.first().copied()));
    let all: usize = signatures.iter().map(|entered| entered.ranks.len()).sum();
    let majority = usize::from(signatures[0].ranks.len() * 2 > all);
    let mut odd: Vec<u32> =
        signatures.iter().skip(majority).flat_map(|entered| entered.ranks.clone()).collect();
    odd.sort_unstable();
    Some(Verdict::Mismatch { ranks: odd, signatures })
}

/// Follows who waits for whom, from the lowest rank still in the operation, to a rank that waits for
/// nobody or to a circle.
fn end_of_waiting(at: u64, ranks: &[RankState]) -> Vec<u32> {
    let waits: BTreeMap<u32, u32> = ranks
        .iter()
        .filter(|rank| !rank.completed(at))
        .filter_map(|rank| Some((rank.rank, rank.waiting_for?)))
        .collect();
    let inside = ranks.iter().filter(|rank| !rank.completed(at)).map(|rank| rank.rank);
    let Some(mut rank) = waits.keys().next().copied().or(inside.min()) else {
        return Vec::new();
    };
    let mut path = Vec::new();
    let mut seen = BTreeSet::new();
    while seen.insert(rank) {
        path.push(rank);
        match waits.get(&rank) {
            Some(next) => rank = *next,
            None => return vec![rank],
        }
    }
    let mut circle: Vec<u32> = path.into_iter().skip_while(|member| *member != rank).collect();
    circle.sort_unstable();
    circle
}

fn in_words(at: u64, verdict: &Verdict, states: &[RankState]) -> String {
    let state = |rank: &u32| states.iter().find(|state| state.rank == *rank);
    let each = |ranks: &[u32], tell: &dyn Fn(&RankState) -> String| {
        words::list(ranks.iter().filter_map(state).map(tell).collect::<Vec<_>>().into_iter())
    };
    match verdict {
        Verdict::Gone { ranks } => {
            format!(
                "operation {at}: {}",
                each(ranks, &|rank| format!("rank {} is gone ({})", rank.rank, rank.place))
            )
        }
        Verdict::Mismatch { ranks, signatures } => disagreement(at, ranks, signatures),
        Verdict::Silent { ranks } => format!("operation {at}: {}", each(ranks, &silence)),
        Verdict::Left { ranks } => format!(
            "{} left the communicator before operation {at} ({})",
            have(ranks),
            each(ranks, &last_entered)
        ),
        Verdict::NeverEntered { ranks } => {
            format!("{} never entered operation {at} ({})", have(ranks), each(ranks, &last_entered))
        }
        Verdict::Stuck { ranks } => format!(
            "all ranks entered operation {at} alike; it hangs on {} ({})",
            words::ranks(ranks.iter().copied()),
            words::list(
                states.iter().filter(|rank| !rank.completed(at)).map(stuck).collect::<Vec<_>>().into_iter()
            )
        ),
        Verdict::Slow => {
            format!("all ranks entered operation {at} alike and nobody waits any more: it was slow")
        }
    }
}

/// "rank 5 has", "ranks 2, 5 have".
fn have(ranks: &[u32]) -> String {
    let verb = if ranks.len() == 1 { "has" } else { "have" };
    format!("{} {verb}", words::ranks(ranks.iter().copied()))
}

fn last_entered(rank: &RankState) -> String {
    let last = rank.last_entered.map_or("nothing".into(), |last| last.to_string());
    format!("rank {}: last entered {last}", rank.rank)
}

fn silence(rank: &RankState) -> String {
    match &rank.presence {
        Presence::Silent { process, silent_ms } => {
            let silent = words::seconds(std::time::Duration::from_millis(*silent_ms));
            format!("rank {} does not answer, silent for {silent}: {process} ({})", rank.rank, rank.place)
        }
        _ => format!("rank {} ({})", rank.rank, rank.place),
    }
}

fn stuck(rank: &RankState) -> String {
    match (rank.instruction, rank.waiting_for) {
        (Some(instruction), Some(peer)) => {
            format!("rank {} at instruction {instruction} waits for rank {peer}", rank.rank)
        }
        _ => format!("rank {} waits for nobody", rank.rank),
    }
}

fn disagreement(at: u64, odd: &[u32], signatures: &[Entered]) -> String {
    let group = |entered: &Entered| {
        let verb = if entered.ranks.len() == 1 { "entered" } else { "all entered" };
        format!("{} {verb} {}", words::ranks(entered.ranks.iter().copied()), entered.signature)
    };
    let all: usize = signatures.iter().map(|entered| entered.ranks.len()).sum();
    let blame = match odd.len() < all {
        true => format!("{} disagrees with the majority", words::ranks(odd.iter().copied())),
        false => format!("{} disagree", words::ranks(odd.iter().copied())),
    };
    format!("operation {at}: {blame}: {}", signatures.iter().map(group).collect::<Vec<_>>().join("; "))
}

/// The schema of [`Report`] as JSON.
pub const SCHEMA: &str = "ccl.verdict/1";

#[cfg(test)]
mod tests {
    use ccl_plan::{Collective, Dtype, Rank, ReduceOp};
    use proptest::prelude::*;

    use super::*;
    use crate::observe::board::Waiting;

    fn all_reduce(count: u64) -> Signature {
        Signature::new(Collective::AllReduce).of(count, Dtype::F32).reduced_by(ReduceOp::Sum)
    }

    /// A rank that completed everything before `front` and entered up to `last` with `signature`.
    fn state(rank: u32, front: u64, last: u64, signature: Signature) -> RankState {
        let recent = (0..=last).map(|sequence| (sequence, signature)).collect();
        let snapshot = Snapshot {
            last_entered: Some(last),
            last_completed: front.checked_sub(1),
            waiting: None,
            recent,
        };
        RankState::new(rank, "pid 1, host h".into(), Presence::Answering).showing(snapshot)
    }

    fn waiting(mut state: RankState, instruction: u32, peer: u32) -> RankState {
        (state.instruction, state.waiting_for) = (Some(instruction), Some(peer));
        state
    }

    fn absent(rank: u32, presence: Presence) -> RankState {
        RankState::new(rank, "pid 9, host h".into(), presence)
    }

    #[test]
    fn a_disagreement_counts_before_a_rank_that_is_still_in_an_earlier_operation() {
        let mut odd = state(2, 4, 4, all_reduce(4));
        odd.recent.push((4, all_reduce(8)));
        odd.recent.retain(|(sequence, signature)| *sequence < 4 || *signature == all_reduce(8));
        let report = verdict(4, vec![state(0, 3, 3, all_reduce(4)), state(1, 4, 4, all_reduce(4)), odd]);
        assert!(matches!(report.verdict, Verdict::Mismatch { .. }), "{report:?}");
        assert_eq!(report.at, 4);
    }

    #[test]
    fn who_never_entered_is_named_with_what_it_entered_last() {
        let mut states: Vec<_> = (0..8).map(|rank| state(rank, 17, 17, all_reduce(4))).collect();
        states[5] = state(5, 17, 16, all_reduce(4));
        let report = verdict(17, states);
        assert_eq!(report.verdict, Verdict::NeverEntered { ranks: vec![5] });
        assert_eq!(report.text, "rank 5 has never entered operation 17 (rank 5: last entered 16)");
        assert_eq!(report.culprit(), Some(5));
    }

    #[test]
    fn the_oldest_operation_in_flight_decides() {
        // Rank 0 is late in 20, because rank 1 is still in 18, which rank 2 never entered.
        let states = vec![
            state(0, 20, 20, all_reduce(4)),
            state(1, 18, 19, all_reduce(4)),
            state(2, 18, 17, all_reduce(4)),
        ];
        let report = verdict(20, states);
        assert_eq!((report.at, &report.verdict), (18, &Verdict::NeverEntered { ranks: vec![2] }));
    }

    #[test]
    fn the_odd_signature_is_named_and_all_are_printed() {
        let base = all_reduce(4);
        let others = [
            base.of(5, Dtype::F32),
            base.of(4, Dtype::F64),
            base.reduced_by(ReduceOp::Max),
            Signature::new(Collective::Broadcast).of(4, Dtype::F32).rooted_at(Rank(1)),
        ];
        for other in others {
            let mut states: Vec<_> = (0..8).map(|rank| state(rank, 3, 3, base)).collect();
            states[3] = state(3, 3, 3, other);
            let report = verdict(3, states);
            assert_eq!(report.culprit(), Some(3));
            assert!(
                report.text.starts_with(
                    "operation 3: rank 3 disagrees with the majority: ranks 0-2, 4-7 all entered "
                )
            );
            assert!(
                report.text.contains(&base.to_string()) && report.text.contains(&other.to_string()),
                "{}",
                report.text
            );
        }
    }

    #[test]
    fn of_two_both_are_named() {
        let report = verdict(3, vec![state(0, 3, 3, all_reduce(4)), state(1, 3, 3, all_reduce(8))]);
        assert_eq!(report.culprit(), None);
        assert_eq!(
            report.text,
            "operation 3: ranks 0-1 disagree: rank 0 entered all_reduce of 4 float, sum; rank 1 entered all_reduce of 8 float, sum"
        );
    }

    #[test]
    fn the_end_of_the_chain_of_waiting_is_named() {
        let inside = |rank, peer| waiting(state(rank, 3, 3, all_reduce(4)), 7, peer);
        let stuck = |states| match verdict(3, states).verdict {
            Verdict::Stuck { ranks } => ranks,
            other => panic!("{other:?}"),
        };
        assert_eq!(stuck(vec![inside(0, 1), inside(1, 2), state(2, 3, 3, all_reduce(4))]), [2]);
        assert_eq!(stuck(vec![inside(0, 2), inside(1, 2), inside(2, 1)]), [1, 2]);
        assert_eq!(stuck(vec![inside(0, 9), state(1, 4, 3, all_reduce(4))]), [9]);
        let report = verdict(3, vec![inside(0, 1), inside(1, 0)]);
        assert!(report.text.contains("rank 0 at instruction 7 waits for rank 1"), "{}", report.text);
    }

    #[test]
    fn silence_absence_and_leaving_have_their_own_words() {
        let silent = Presence::Silent {
            process: "its process is alive but stopped, not answering".into(),
            silent_ms: 2500,
        };
        let text = |other: RankState| verdict(1, vec![state(0, 1, 1, all_reduce(4)), other]).text;
        assert_eq!(
            text(absent(1, silent)),
            "operation 1: rank 1 does not answer, silent for 2.5 s: its process is alive but stopped, not answering (pid 9, host h)"
        );
        assert_eq!(text(absent(1, Presence::Gone)), "operation 1: rank 1 is gone (pid 9, host h)");
        let left = absent(1, Presence::Left);
        assert_eq!(
            text(left),
            "rank 1 has left the communicator before operation 1 (rank 1: last entered nothing)"
        );
        let slow = text(state(1, 2, 1, all_reduce(4)));
        assert!(slow.starts_with("all ranks entered operation 1 alike; it hangs on rank 0"), "{slow}");
        let done = verdict(1, vec![state(0, 2, 1, all_reduce(4)), state(1, 2, 1, all_reduce(4))]);
        assert_eq!((done.verdict, done.ranks.len()), (Verdict::Slow, 2));
    }

    #[test]
    fn the_document_keeps_its_shape() {
        let report = verdict(
            1,
            vec![
                waiting(state(0, 1, 1, all_reduce(4)), 2, 1),
                absent(1, Presence::Silent { process: "stopped".into(), silent_ms: 5 }),
            ],
        );
        let expected = concat!(
            r#"{"schema":"ccl.verdict/1","sequence":1,"at":1,"verdict":{"kind":"silent","ranks":[1]},"#,
            r#""text":"operation 1: rank 1 does not answer, silent for 0 s: stopped (pid 9, host h)","ranks":["#,
            r#"{"rank":0,"place":"pid 1, host h","presence":{"presence":"answering"},"last_entered":1,"last_completed":0,"#,
            r#""instruction":2,"waiting_for":1,"signature":{"collective":"all_reduce","dtype":"float","reduce_op":"sum","level":"run","#,
            r#""root":null,"count":4,"counts_hash":0}},"#,
            r#"{"rank":1,"place":"pid 9, host h","presence":{"presence":"silent","process":"stopped","silent_ms":5},"#,
            r#""last_entered":null,"last_completed":null,"instruction":null,"waiting_for":null,"signature":null}]}"#
        );
        assert_eq!(report.to_json(), expected);
    }

    fn any_state(n: u32) -> impl Strategy<Value = RankState> {
        let presence = prop_oneof![
            4 => Just(Presence::Answering),
            1 => Just(Presence::Gone),
            1 => Just(Presence::Left),
            1 => Just(Presence::Silent { process: String::new(), silent_ms: 1 }),
        ];
        let waiting = proptest::option::of((any::<u32>(), 0..n + 2));
        let numbers = (proptest::option::of(0u64..5), proptest::option::of(any::<u64>()));
        (presence, numbers, waiting, 0u64..3, 0u64..6).prop_map(
            |(presence, (entered, completed), waiting, count, from)| {
                let recent = (from..from + 3).map(|sequence| (sequence, all_reduce(count))).collect();
                let waiting = waiting.map(|(instruction, peer)| Waiting { instruction, peer });
                let snapshot = Snapshot { last_entered: entered, last_completed: completed, waiting, recent };
                RankState::new(0, String::new(), presence).showing(snapshot)
            },
        )
    }

    proptest! {
        #[test]
        fn any_states_get_a_verdict_that_survives_json(mut states in proptest::collection::vec(any_state(6), 0..7), sequence: u64) {
            for (rank, state) in states.iter_mut().enumerate() {
                state.rank = rank as u32;
            }
            let mut report = verdict(sequence, states);
            for rank in &mut report.ranks {
                rank.recent.clear();
            }
            prop_assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
        }
    }
}
