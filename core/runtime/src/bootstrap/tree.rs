//! An all-gather over a tree of ranks, without edges, threads or clocks.
//!
//! Every rank stands for a range of ranks, of which it is the first: rank 0 for all. It halves the rest of its range, and
//! the first rank of each half is a child of its. Infos go up, a range at a time, until rank 0 has all; then the
//! table of all goes down as it is. So every rank but rank 0 sends one message to its parent and gets one:
//! 2(n - 1) messages, at most 2⌊log₂ n⌋ of them one after another, and nobody has more than three peers.
//!
//! Gathering and broadcasting over halved ranges are "MST" algorithms of Chan, Heimlich, Purkayastha and van de Geijn,
//! "Collective communication: theory, practice, and experience" (2007); here a rank has two children whatever its range, so
//! that none sends the whole table more than twice.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ccl_plan::Rank;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::machine::{TABLE_BYTES, Time};
use crate::bootstrap::{wire, words};
use crate::error::{Error, Fault, Result};

/// What happens to a rank.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Go.
    Begin,
    /// A letter of a parent or child is complete.
    Received { from: Rank, letter: Vec<u8> },
    /// The network has taken all that was sent to this rank.
    Taken { by: Rank },
    /// Time passed.
    Tick,
}

/// What a rank does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Send a letter to a parent or child.
    Send { to: Rank, letter: Letter },
    /// It is over: the infos of all ranks, by rank.
    Done(Infos),
}

/// What is sent, shared by its receivers.
pub(crate) type Letter = Arc<[u8]>;

/// One rank's part.
pub(crate) struct Tree {
    place: Place,
    n: u32,
    /// When to give up, but for what others need to notice first.
    deadline: Time,
    stage: Stage,
}

/// Where a rank stands.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    /// The ranks that it stands for, itself first.
    range: Range<u32>,
    parent: Option<Rank>,
    /// Their ranges; no two start alike.
    children: Vec<Range<u32>>,
    /// Steps to rank 0.
    depth: u32,
}

enum Stage {
    /// The infos of its own range; of its children's, those that have come.
    Collecting {
        own: Vec<u8>,
        parts: Vec<Option<Infos>>,
    },
    /// For the table.
    Waiting,
    /// The table is there; these have not taken it yet.
    Delivering {
        infos: Infos,
        to: Vec<Rank>,
    },
    Over,
}

impl Tree {
    /// The part of `rank` of n, which brings `own` and gives up at `deadline`.
    pub(crate) fn new((rank, n): (Rank, u32), own: Vec<u8>, deadline: Time) -> Tree {
        let place = Place::of(rank, n);
        let parts = place.children.iter().map(|_| None).collect();
        Tree { place, n, deadline, stage: Stage::Collecting { own, parts } }
    }

    /// The ranks with which it exchanges letters.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Rank> {
        self.place.parent.into_iter().chain(self.place.children.iter().map(|child| Rank(child.start)))
    }

    /// Whether a letter of this peer is still to come. One of which none is may have closed the connection.
    pub(crate) fn awaits(&self, peer: Rank) -> bool {
        match &self.stage {
            Stage::Collecting { parts, .. } => {
                let mut children = self.place.children.iter().zip(parts);
                children.any(|(child, part)| child.start == peer.0 && part.is_none())
            }
            Stage::Waiting => self.place.parent == Some(peer),
            Stage::Delivering { .. } | Stage::Over => false,
        }
    }

    /// Whether this peer may still lack something of this rank's.
    pub(crate) fn serves(&self, peer: Rank) -> bool {
        match &self.stage {
            Stage::Collecting { .. } | Stage::Waiting => true,
            Stage::Delivering { to, .. } => to.contains(&peer),
            Stage::Over => false,
        }
    }

    /// Takes in an event; returns what to do, in order.
    ///
    /// Errors: a letter that cannot be read; infos too long; a rank that did not come in time, by name.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Result<Vec<Action>> {
        match event {
            Event::Begin => self.pass_on(),
            Event::Received { from, letter } => self.received(from, letter),
            Event::Taken { by } => Ok(self.taken(by)),
            Event::Tick => self.check(now).map(|()| Vec::new()),
        }
    }

    /// When to tick next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.awaited().map(|(_, at)| at)
    }

    fn received(&mut self, from: Rank, letter: Vec<u8>) -> Result<Vec<Action>> {
        match &mut self.stage {
            Stage::Collecting { parts, .. } => {
                let child = self.place.children.iter().position(|child| child.start == from.0);
                let Some(child) = child.filter(|child| parts[*child].is_none()) else {
                    return Err(unexpected(from, "infos when none were to come"));
                };
                parts[child] = Some(read(from, &letter, self.place.children[child].len())?);
                self.pass_on()
            }
            Stage::Waiting if self.place.parent == Some(from) => {
                let infos = read(from, &letter, self.n as usize)?;
                Ok(self.deliver(infos, &letter.into()))
            }
            _ => Err(unexpected(from, "infos when none were to come")),
        }
    }

    /// Sends the infos of its range up, or those of all down, once they are there.
    fn pass_on(&mut self) -> Result<Vec<Action>> {
        let Stage::Collecting { own, parts } = &mut self.stage else { return Ok(Vec::new()) };
        if parts.iter().any(Option::is_none) {
            return Ok(Vec::new());
        }
        let mut infos: Vec<Bytes> = vec![std::mem::take(own).into()];
        infos.extend(std::mem::take(parts).into_iter().flatten().flat_map(|infos| infos.to_vec()));
        let infos: Infos = infos.iter().collect();
        let total_bytes = infos.total_bytes();
        if total_bytes > TABLE_BYTES {
            let cause =
                format!("expected infos of at most {TABLE_BYTES} bytes together, found {total_bytes}");
            return Err(Error::usage(cause, "exchange long data through the communicator itself"));
        }
        let letter: Letter = wire::body(&infos).into();
        match self.place.parent {
            None => Ok(self.deliver(infos, &letter)),
            Some(to) => {
                self.stage = Stage::Waiting;
                Ok(vec![Action::Send { to, letter }])
            }
        }
    }

    fn deliver(&mut self, infos: Infos, letter: &Letter) -> Vec<Action> {
        let to: Vec<Rank> = self.place.children.iter().map(|child| Rank(child.start)).collect();
        let send = |to: &Rank| Action::Send { to: *to, letter: Arc::clone(letter) };
        let mut actions: Vec<Action> = to.iter().map(send).collect();
        self.stage = Stage::Delivering { infos, to };
        actions.extend(self.finish());
        actions
    }

    fn taken(&mut self, by: Rank) -> Vec<Action> {
        if let Stage::Delivering { to, .. } = &mut self.stage {
            to.retain(|rank| *rank != by);
        }
        self.finish().into_iter().collect()
    }

    fn finish(&mut self) -> Option<Action> {
        match &mut self.stage {
            Stage::Delivering { infos, to } if to.is_empty() => {
                let infos = std::mem::take(infos);
                self.stage = Stage::Over;
                Some(Action::Done(infos))
            }
            _ => None,
        }
    }

    /// Whom it waits for, and when it gives that up. Who waits for a silent rank itself gives up before those who wait
    /// for somebody who waits: so the first to complain names the right one.
    fn awaited(&self) -> Option<(Rank, Time)> {
        let after = |steps: u32| self.deadline + steps * STEP;
        let around = self.n.ilog2() + self.place.depth;
        match &self.stage {
            Stage::Collecting { parts, .. } => {
                let missing = self.place.children.iter().zip(parts).filter(|(_, part)| part.is_none());
                let child = missing.map(|(child, _)| child).min_by_key(|child| child.len())?;
                Some((Rank(child.start), after(child.len().ilog2())))
            }
            Stage::Waiting => Some((self.place.parent?, after(around))),
            Stage::Delivering { to, .. } => Some((*to.first()?, after(around + 1))),
            Stage::Over => None,
        }
    }

    fn check(&self, now: Time) -> Result<()> {
        let Some((peer, _)) = self.awaited().filter(|(_, at)| now >= *at) else { return Ok(()) };
        let time = words::seconds(self.deadline);
        let whose = match &self.stage {
            Stage::Collecting { .. } => {
                let child = self.place.children.iter().find(|child| child.start == peer.0);
                words::ranks(child.cloned().into_iter().flatten())
            }
            _ => "all ranks".to_owned(),
        };
        let cause = match &self.stage {
            Stage::Delivering { .. } => {
                format!(
                    "expected rank {peer} to take the infos of {whose} out of band within {time}; it did not"
                )
            }
            _ => format!(
                "expected the infos of {whose} from rank {peer} out of band within {time}, found none"
            ),
        };
        let advice = "see why the named rank did not come: its log, or whether the network of CCL_OOB_NET_IFNAME reaches it";
        Err(Error::new(Fault::Remote { rank: peer }, cause, advice).with_peer(peer))
    }
}

impl Place {
    fn of(rank: Rank, n: u32) -> Place {
        let (mut range, mut parent, mut depth) = (0..n, None, 0);
        while let Some(half) = halves(&range).into_iter().find(|half| half.contains(&rank.0)) {
            (parent, depth) = (Some(Rank(range.start)), depth + 1);
            range = half;
        }
        let children = halves(&range).into_iter().filter(|half| !half.is_empty()).collect();
        Place { range, parent, children, depth }
    }
}

/// The rest of a range without its first, in two; the first half is the longer.
fn halves(range: &Range<u32>) -> [Range<u32>; 2] {
    let rest = range.start + 1..range.end;
    let middle = rest.start + (rest.len() as u32).div_ceil(2);
    [rest.start..middle, middle..rest.end]
}

/// The infos of so many ranks.
fn read(from: Rank, letter: &[u8], ranks: usize) -> Result<Infos> {
    match wire::decode::<Infos>(letter) {
        Some(infos) if infos.len() == ranks => Ok(infos),
        Some(infos) => {
            Err(unexpected(from, &format!("the infos of {} rather than {ranks} ranks", infos.len())))
        }
        None => Err(unexpected(from, "something that is no list of infos")),
    }
}

fn unexpected(from: Rank, found: &str) -> Error {
    let cause = format!("expected the infos of ranks from rank {from} out of band, found {found}");
    Error::new(Fault::Remote { rank: from }, cause, "run the same version of ccl on all ranks")
        .with_peer(from)
}

/// How much later each step of the tree gives up.
const STEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Ranks and the letters on their way between them.
    struct Ranks {
        trees: Vec<Tree>,
        /// From, to, what, and how many came before it one after another.
        letters: VecDeque<(Rank, Rank, Letter, u32)>,
        /// The longest chain of letters that led to what each rank knows.
        chains: Vec<u32>,
        done: Vec<Option<Infos>>,
        sent: Vec<u32>,
    }

    impl Ranks {
        fn new(n: u32) -> Ranks {
            let trees = (0..n).map(|rank| Tree::new((Rank(rank), n), info(rank), DEADLINE)).collect();
            let count = n as usize;
            Ranks {
                trees,
                letters: VecDeque::new(),
                chains: vec![0; count],
                done: vec![None; count],
                sent: vec![0; count],
            }
        }

        fn feed(&mut self, rank: Rank, event: Event) {
            for action in self.trees[rank.index()].on(event, Duration::ZERO).unwrap() {
                match action {
                    Action::Send { to, letter } => {
                        self.sent[rank.index()] += 1;
                        self.letters.push_back((rank, to, letter, self.chains[rank.index()] + 1));
                    }
                    Action::Done(infos) => self.done[rank.index()] = Some(infos),
                }
            }
        }

        /// Delivers letters in some order until none is left; one rank may do nothing.
        fn run(&mut self, seed: &mut u64, but: Option<Rank>) {
            for rank in (0..self.trees.len() as u32).map(Rank).filter(|rank| Some(*rank) != but) {
                self.feed(rank, Event::Begin);
            }
            while !self.letters.is_empty() {
                *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let next = (*seed >> 33) as usize % self.letters.len();
                let (from, to, letter, chain) = self.letters.remove(next).unwrap();
                self.feed(from, Event::Taken { by: to });
                if Some(to) == but {
                    continue;
                }
                self.chains[to.index()] = self.chains[to.index()].max(chain);
                self.feed(to, Event::Received { from, letter: letter.to_vec() });
            }
        }
    }

    fn info(rank: u32) -> Vec<u8> {
        vec![rank as u8; rank as usize % 7]
    }

    #[test]
    fn every_rank_gets_all_infos_by_few_letters_in_any_order() {
        let mut seed = 0x0b0e;
        println!("seed {seed}");
        for n in (1..=65).chain([127, 128, 129, 500]) {
            let mut ranks = Ranks::new(n);
            ranks.run(&mut seed, None);
            let expected: Infos = (0..n).map(info).collect();
            assert!(ranks.done.iter().all(|done| done.as_ref() == Some(&expected)), "n = {n}");
            assert_eq!(ranks.sent.iter().sum::<u32>(), 2 * (n - 1), "n = {n}");
            assert!(ranks.chains.iter().all(|chain| *chain <= 2 * n.ilog2()), "n = {n}: {:?}", ranks.chains);
            assert!(ranks.trees.iter().all(|tree| tree.peers().count() <= 3));
        }
    }

    #[test]
    fn neighbours_in_the_tree_mostly_meet_at_one_root() {
        for (n, k) in [(1024, 1), (1024, 8), (24_576, 24)] {
            let share = |rank: u32| rank / (n / k);
            let parents = (1..n).map(|rank| (rank, Place::of(Rank(rank), n).parent.unwrap().0));
            let across = parents.filter(|(rank, parent)| share(*rank) != share(*parent)).count();
            println!("{n} ranks, {k} roots: {across} of {} pairs are of two shares", n - 1);
            assert!(across <= ((k - 1) * n.ilog2()) as usize, "{across}");
        }
    }

    #[test]
    fn the_first_to_give_up_names_the_silent_rank() {
        for n in [2, 3, 8, 21] {
            for silent in (0..n).map(Rank) {
                let mut ranks = Ranks::new(n);
                ranks.run(&mut 7, Some(silent));
                let waiting = ranks.trees.iter().enumerate().filter(|(rank, _)| *rank != silent.index());
                let (rank, at) = waiting
                    .filter_map(|(rank, tree)| Some((rank, tree.due()?)))
                    .min_by_key(|(_, at)| *at)
                    .unwrap();
                let tree = &mut ranks.trees[rank];
                assert!(tree.on(Event::Tick, at - Duration::from_millis(1)).unwrap().is_empty());
                let error = tree.on(Event::Tick, at).unwrap_err();
                assert_eq!(
                    (error.fault(), error.peer()),
                    (&Fault::Remote { rank: silent }, Some(silent)),
                    "{error}"
                );
                assert!(
                    at < DEADLINE + Duration::from_millis(500) && error.cause().contains("within 2 s"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn peers_that_have_all_and_gave_all_may_go() {
        let mut tree = Tree::new((Rank(1), 7), info(1), DEADLINE);
        let of = |tree: &Tree, says: fn(&Tree, Rank) -> bool| [0, 2, 3].map(|peer| says(tree, Rank(peer)));
        assert_eq!(tree.peers().collect::<Vec<_>>(), [0, 2, 3].map(Rank));
        tree.on(Event::Begin, Duration::ZERO).unwrap();
        assert_eq!((of(&tree, Tree::awaits), of(&tree, Tree::serves)), ([false, true, true], [true; 3]));
        for child in [3, 2] {
            let letter = wire::body(&Infos::from_iter([info(child)]));
            tree.on(Event::Received { from: Rank(child), letter }, Duration::ZERO).unwrap();
        }
        assert_eq!((of(&tree, Tree::awaits), of(&tree, Tree::serves)), ([true, false, false], [true; 3]));
        let letter = wire::body(&(0..7).map(info).collect::<Infos>());
        tree.on(Event::Received { from: Rank(0), letter }, Duration::ZERO).unwrap();
        assert_eq!((of(&tree, Tree::awaits), of(&tree, Tree::serves)), ([false; 3], [false, true, true]));
        tree.on(Event::Taken { by: Rank(3) }, Duration::ZERO).unwrap();
        assert_eq!(of(&tree, Tree::serves), [false, true, false]);
    }

    #[test]
    fn a_child_that_does_not_take_the_table_is_named() {
        let mut tree = Tree::new((Rank(0), 2), info(0), DEADLINE);
        assert_eq!(tree.on(Event::Begin, Duration::ZERO).unwrap(), []);
        let letter = wire::body(&Infos::from_iter([info(1)]));
        let sent = tree.on(Event::Received { from: Rank(1), letter }, Duration::ZERO).unwrap();
        assert!(matches!(&sent[..], [Action::Send { to: Rank(1), .. }]), "{sent:?}");
        let error = tree.on(Event::Tick, tree.due().unwrap()).unwrap_err();
        assert!(error.cause().contains("expected rank 1 to take the infos"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_names_who_sent_it() {
        let good = |ranks: u32| wire::body(&(0..ranks).map(info).collect::<Infos>());
        // Of 4 ranks, rank 0 has the children 1 (with 2) and 3.
        for (from, letter, found) in [
            (1, good(1), "the infos of 1 rather than 2 ranks"),
            (3, vec![9; 9], "no list of infos"),
            (2, good(1), "when none were to come"),
        ] {
            let mut tree = Tree::new((Rank(0), 4), info(0), DEADLINE);
            let from = Rank(from);
            let error = tree.on(Event::Received { from, letter }, Duration::ZERO).unwrap_err();
            assert_eq!(error.peer(), Some(from));
            assert!(error.cause().contains(found), "{error}");
        }
        let mut twice = Tree::new((Rank(0), 4), info(0), DEADLINE);
        let again = || Event::Received { from: Rank(3), letter: good(1) };
        assert_eq!(twice.on(again(), Duration::ZERO).unwrap(), []);
        assert!(twice.on(again(), Duration::ZERO).unwrap_err().cause().contains("when none were to come"));
        let mut leaf = Tree::new((Rank(3), 4), info(3), DEADLINE);
        leaf.on(Event::Begin, Duration::ZERO).unwrap();
        let answer = || Event::Received { from: Rank(0), letter: good(4) };
        assert!(matches!(&leaf.on(answer(), Duration::ZERO).unwrap()[..], [Action::Done(_)]));
        assert!(leaf.on(answer(), Duration::ZERO).unwrap_err().cause().contains("when none were to come"));
        let long =
            Tree::new((Rank(0), 1), vec![0; TABLE_BYTES + 1], DEADLINE).on(Event::Begin, Duration::ZERO);
        assert_eq!(long.unwrap_err().fault(), &Fault::Usage);
    }

    const DEADLINE: Time = Duration::from_secs(2);
}
