//! The plan table: which program serves a call, checked once and kept.

mod cut;
mod key;

use std::collections::HashMap;
use std::sync::Arc;

use ccl_plan::cost::{Multicast, Nodes, Rates, read_from_bytes};
use ccl_plan::layout::{Layout, Tables};
use ccl_plan::program::Checked;
use ccl_plan::select::{Advice, Allow, Choice, Inputs, Level, Selection, UserAlgorithm};
use ccl_plan::verify::{Depth, verify};
use ccl_plan::{Algorithm, Collective, Dtype, Place, Plan, Rank, ReduceOp, algorithms};

use serde::{Deserialize, Serialize};

pub(crate) use self::cut::{Cut, Direct, Room};
use self::cut::{GRAIN_BYTES, buffers_bytes};
pub(super) use self::key::TagSeed;
use self::key::{Key, signature};
use super::device::{self, Channels, Lines, OneShot};
use super::lending::{
    Lendable, Lending, Lent, Sending, may_share, most_read_apart_bytes, most_read_bytes, read_where_tried,
};
use super::mapped;
use super::reduce::Reduction;
use super::straight::{self, Heed};
use super::tape::Tape;
use super::tuning::Tuning;
use super::user;
use crate::config::{Choices, Config, Determinism};
use crate::discover::processor::{is_of_amd, make};
use crate::error::{Error, Result};
use crate::observe::board::Packed;
use crate::request::{Bound, Fit, Request, named_root};
use crate::transport::{FEW_RANKS, Fabric, LONGEST_LENT_BYTES};

/// One rank's plans.
pub(crate) struct Plans {
    rank: Rank,
    n: u32,
    cut: Cut,
    reach: Reach,
    selection: Selection,
    /// For calls that ask for more determinism, by what they ask for.
    stricter: Vec<Selection>,
    programs: HashMap<(Collective, Algorithm, Rank), Arc<Known>>,
    decisions: HashMap<Key, Arc<Decision>>,
    /// The decisions of late, each at the one place that its key may be: found by one probe, where the
    /// table above takes 100 ns.
    recent: Box<[Recent]>,
    /// Ranks of each host, if there are several.
    nodes: Vec<u32>,
    /// Whether ranks may have mapped each other's buffers.
    mapped: bool,
    /// Whether a slot may serve several receivers, and whether steps are taped for the host executor.
    shares: bool,
    tapes: bool,
    /// Which calls follow lines, whose slots are shorter.
    lines: Option<Lines>,
}

/// A decision and what it was made for; and, of a call that was checked, what it was like.
type Recent = Option<(Key, Arc<Decision>, Option<Fit>)>;

/// This rank's program, and what ranks must know of all programs of its plan.
struct Known {
    program: Arc<Checked>,
    lendable: Lendable,
    /// Whether a slot may serve several receivers.
    shares: bool,
    /// The most chunks or blocks that one Move of any rank covers.
    widest: usize,
}

/// A program, how its data is cut, and everything else about a call but its buffers.
pub(crate) struct Decision {
    pub(crate) algorithm: Algorithm,
    pub(crate) program: Arc<Checked>,
    pub(crate) channels: u16,
    pub(crate) chunk_count: usize,
    pub(crate) grain_count: usize,
    pub(crate) reduction: Reduction,
    pub(super) sending: Sending,
    /// Whether all that the programs send lies in user memory and stays as it is, for devices.
    pub(super) lendable: bool,
    /// Whether calls begin by looking whether all buffers are mapped.
    pub(super) mapped: bool,
    /// What other ranks must have asked for under the same number.
    pub(super) signature: Packed,
    pub(super) tag: TagSeed,
    /// The program's steps, if they are few.
    pub(super) tape: Option<Tape>,
    /// Whether calls may take them all without becoming an operation.
    pub(super) straight: bool,
    /// How a rank that shares its core waits for others.
    pub(super) heed: Heed,
    /// Bytes of scratch of all lanes.
    pub(super) scratch_bytes: usize,
    /// Whether the buffers of all ranks exceed the last-level cache.
    pub(super) huge: bool,
}

/// What a decision is made of but for this rank's steps.
struct Shape {
    choice: Choice,
    known: Arc<Known>,
    chunk_count: usize,
    lending: Lending,
    mapped: bool,
}

/// What a call would do.
pub(crate) struct Explained {
    pub(crate) bytes: u64,
    pub(crate) choice: Choice,
    pub(crate) chunk_count: usize,
    pub(crate) carried: Carried,
}

/// How data gets from rank to rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carried {
    /// Copied into slots and out of them, or sent and received by a network.
    Slots,
    /// Read by the receiver where the sender has it.
    Lent,
    /// Read and folded in place if all ranks' buffers of the call are mapped, else as without mapping.
    Mapped,
}

impl std::fmt::Display for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Carried::Slots => "in slots",
            Carried::Lent => "read where it is",
            Carried::Mapped => "in place if all buffers are mapped",
        })
    }
}

impl Carried {
    /// The name in what tools write for other programs.
    pub const fn name(self) -> &'static str {
        match self {
            Carried::Slots => "slots",
            Carried::Lent => "lent",
            Carried::Mapped => "mapped",
        }
    }

    fn by(lending: Lending, mapped: bool) -> Carried {
        match lending {
            _ if mapped => Carried::Mapped,
            Lending::Never | Lending::Nothing => Carried::Slots,
            Lending::Everything { .. } => Carried::Lent,
        }
    }
}

impl Decision {
    pub(crate) fn carried(&self) -> Carried {
        Carried::by(self.sending.lending, self.mapped)
    }
}

impl Plans {
    /// `nodes` has the ranks of each host.
    pub(crate) fn new(
        (rank, n): (Rank, u32),
        cut: Cut,
        reach: Reach,
        selection: Selection,
        nodes: Vec<u32>,
    ) -> Plans {
        let recent = (0..RECENT).map(|_| None).collect();
        let (programs, decisions) = (HashMap::new(), HashMap::new());
        Plans {
            rank,
            n,
            cut,
            reach,
            selection,
            stricter: Vec::new(),
            programs,
            decisions,
            recent,
            nodes,
            mapped: false,
            shares: true,
            tapes: true,
            lines: None,
        }
    }

    /// Some rank works on a device (this one, if there are `lines`), whose slots lie apart from all others.
    pub(crate) fn keep_to_slots(&mut self, lines: Option<Lines>) {
        (self.shares, self.tapes) = (false, lines.is_none());
        self.lines = lines;
    }

    /// From now on buffers may be mapped. Called between the same two calls on all ranks.
    pub(crate) fn expect_mapped(&mut self) {
        if !self.mapped {
            self.mapped = true;
            self.decisions.clear();
            self.recent.fill_with(|| None);
        }
    }

    /// The program for a call, and how to cut its data. `fabric` is where its edges are.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        bound: &Bound,
        tables: Option<&Tables<'_>>,
        fabric: &mut Fabric,
    ) -> Result<&Arc<Decision>> {
        let key = Key {
            collective: bound.collective,
            dtype: bound.dtype,
            count: tables.map_or(bound.count, |tables| average_count(bound.collective, tables)),
            root: bound.root,
            reduce_op: bound.reduce.op(),
            level: bound.reduce.level(),
            scalar_bits: bound.reduce.scalar().to_bits(),
        };
        let place = key.place(self.recent.len());
        if self.recent[place].as_ref().is_none_or(|(found, ..)| *found != key) {
            let decision = self.look_up(key, bound, tables.is_some(), fabric)?;
            self.recent[place] = Some((key, decision, None));
        }
        match &self.recent[place] {
            Some((_, decision, _)) => Ok(decision),
            None => Err(Error::bug("a decision got lost")),
        }
    }

    /// What was decided for a call that was found in order and was like this one in everything but where its buffers
    /// are, and this one's part of it. Not of calls whose blocks differ.
    #[inline(always)]
    pub(crate) fn recall(&self, request: &mut Request<'_>) -> Option<(Bound, &Arc<Decision>)> {
        let key = Key::of(request);
        match &self.recent[key.place(self.recent.len())] {
            Some((found, decision, Some(fit))) if *found == key && request.blocks.is_none() => {
                Some((request.bind_as(fit)?, decision))
            }
            _ => None,
        }
    }

    /// Remembers that this call, for which there is a decision, is in order.
    pub(crate) fn remember(&mut self, request: &Request<'_>, bound: &Bound) {
        let key = Key::of(request);
        let place = key.place(self.recent.len());
        if let Some((found, _, fit)) = &mut self.recent[place]
            && *found == key
        {
            *fit = Some(request.fit(bound));
        }
    }

    /// The decision for calls of `count` elements, or of blocks of that many on average; made if there is none.
    pub(crate) fn explain(
        &mut self,
        (collective, dtype): (Collective, Dtype),
        count: usize,
        root: Rank,
    ) -> Result<Explained> {
        let (root, reduce_op, level) = (named_root(collective, root), ReduceOp::Sum, Level::Run);
        let key = Key { collective, dtype, count, root, reduce_op, scalar_bits: 0, level };
        let shape = self.shape(&key, collective.uneven())?;
        let bytes = self.choice_bytes(collective, dtype, count);
        let carried = Carried::by(shape.lending, shape.mapped);
        Ok(Explained { bytes, choice: shape.choice, chunk_count: shape.chunk_count, carried })
    }

    /// The size that choices go by, the same on all ranks.
    fn choice_bytes(&self, collective: Collective, dtype: Dtype, count: usize) -> u64 {
        match blocks_are_private(collective) {
            true => (PRIVATE_BLOCK_BYTES * self.n as usize) as u64,
            false => self.bytes(collective, dtype, count),
        }
    }

    /// The size of the vector, or of all blocks.
    fn bytes(&self, collective: Collective, dtype: Dtype, count: usize) -> u64 {
        let blocks = if bound_is_whole(collective) { 1 } else { self.n as usize };
        (count * blocks * dtype.size_bytes()) as u64
    }

    #[cold]
    fn look_up(
        &mut self,
        key: Key,
        bound: &Bound,
        uneven: bool,
        fabric: &mut Fabric,
    ) -> Result<Arc<Decision>> {
        if let Some(decision) = self.decisions.get(&key) {
            return Ok(Arc::clone(decision));
        }
        let decision = Arc::new(self.make(key, bound, uneven, fabric)?);
        if self.decisions.len() == MOST_DECISIONS {
            self.decisions.clear();
        }
        self.decisions.insert(key, Arc::clone(&decision));
        Ok(decision)
    }

    /// What a decision is made of but for this rank's steps.
    fn shape(&mut self, key: &Key, uneven: bool) -> Result<Shape> {
        let (size, root) = (key.dtype.size_bytes(), key.root);
        let bytes = self.choice_bytes(key.collective, key.dtype, key.count);
        let choice = self.selection_at(key.level)?.choose(key.collective, bytes);
        let mapped = self.mapped
            && self.n > 1
            && (1..=bytes).contains(&(self.cut.mapped_bytes as u64))
            && mapped::has_path(key.collective, choice.algorithm);
        let known = self.program(key.collective, choice.algorithm, root)?;
        // Blocks of uneven calls differ between ranks, so none may decide the chunk.
        let count = if uneven { usize::MAX / size } else { key.count };
        let advised = self.selection_at(key.level)?.advice_on(key.collective, bytes).copied();
        let message = key.collective.is_message();
        let cut = if message && root == self.rank { self.cut.to_oneself() } else { self.cut };
        let asked = (key.collective, key.dtype, key.count);
        let cut = match &self.lines {
            Some(lines) if lines.serve(asked, self.n) => cut.of_slots(Lines::SLOT_BYTES),
            _ => cut,
        };
        let chunk_bytes = cut.chunk_bytes_by(advised);
        let (chunk_count, lending) = self.chunk_count(
            &known,
            (&choice, &cut, chunk_bytes),
            count,
            size,
            known.lendable.under(key.reduce_op),
        )?;
        Ok(Shape { choice, known, chunk_count, lending, mapped })
    }

    fn make(&mut self, key: Key, bound: &Bound, uneven: bool, fabric: &mut Fabric) -> Result<Decision> {
        let Shape { choice, known, chunk_count, lending, mapped } = self.shape(&key, uneven)?;
        let (size, program) = (key.dtype.size_bytes(), Arc::clone(&known.program));
        let layout = Layout {
            collective: key.collective,
            n: self.n,
            rank: self.rank,
            count: key.count,
            tables: None,
            order: None,
            channels: choice.channels,
            chunk_count,
            grain_count: (GRAIN_BYTES / size).max(1),
        };
        let shares = self.shares && known.shares && fabric.shares_slots();
        // Devices take what programs say.
        let whole_bytes = if self.shares { self.cut.whole_bytes(key.collective) } else { 0 };
        let sending = Sending { lending, shares, whole_bytes };
        let tape = match uneven || !self.tapes {
            true => None,
            // An edge that cannot be made is an error of the call when it gets there, not of choosing.
            false => Tape::record(&program, &layout, bound, sending, fabric).ok().flatten(),
        };
        let lanes = program.lanes.len();
        let cells = usize::from(choice.channels) * lanes * usize::from(program.scratch_chunks);
        let straight = !mapped && straight::may(tape.as_ref(), choice.channels, lanes, lending, self.reach);
        let bytes = self.bytes(key.collective, key.dtype, key.count);
        Ok(Decision {
            straight,
            heed: Heed::of(key.collective, bytes, straight, fabric.ranks_of_a_core()),
            scratch_bytes: cells * chunk_count * size,
            huge: buffers_bytes(key.collective, bytes, (key.count * size) as u64, self.n)
                > fabric.cache_bytes() as u64,
            algorithm: choice.algorithm,
            channels: choice.channels,
            chunk_count,
            grain_count: layout.grain_count,
            reduction: Reduction::new(key.dtype, key.reduce_op, self.n, bound.reduce.scalar()),
            sending,
            lendable: known.lendable.under(key.reduce_op) == Lent::All,
            mapped,
            signature: signature(bound).pack(),
            tag: TagSeed::new(bound),
            program,
            tape,
        })
    }

    /// How the farthest peer is reached.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// How algorithms are chosen for calls that ask for a level.
    fn selection_at(&mut self, level: Level) -> Result<&Selection> {
        if level <= self.selection.inputs().level {
            return Ok(&self.selection);
        }
        let known = self.stricter.iter().position(|selection| selection.inputs().level == level);
        let index = match known {
            Some(index) => index,
            None => {
                self.stricter.push(select(Inputs { level, ..self.selection.inputs().clone() })?);
                self.stricter.len() - 1
            }
        };
        Ok(&self.stricter[index])
    }

    /// How algorithms are chosen.
    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// This rank's program, and what all ranks' programs have in common.
    fn program(&mut self, collective: Collective, algorithm: Algorithm, root: Rank) -> Result<Arc<Known>> {
        let key = (collective, algorithm, root);
        if let Some(known) = self.programs.get(&key) {
            return Ok(Arc::clone(known));
        }
        let own = self.selection.inputs().user_algorithm(collective).map(|user| user.plan().clone());
        let own = own.filter(|_| algorithm == Algorithm::User);
        let plan = own.or_else(|| Plan::new(collective, algorithm, self.n)).ok_or_else(|| {
            Error::usage(
                format!("expected an algorithm for {collective} with {} ranks, found {algorithm}", self.n),
                "see `ccl plan show` for the algorithms of each collective, and check CCL_ALGO",
            )
        })?;
        let plan = self.among_nodes(plan)?;
        match algorithm {
            Algorithm::User => user::prove_at(&plan, root)?,
            _ if self.n <= MOST_RANKS_PROVEN => prove(&plan)?,
            _ => {}
        }
        let program = plan.program(Place(self.rank.0), Place(root.0));
        let refused = |error| Error::bug(format!("{collective}.{algorithm}: {error}"));
        let checked = program.check(self.n).map_err(refused)?;
        let cast = plan.cast(Place(root.0)).map_err(refused)?;
        let known = Arc::new(Known {
            program: Arc::new(checked),
            lendable: Lendable::of(&plan, &cast),
            shares: may_share(&plan),
            widest: cast.programs.iter().map(Checked::widest).max().unwrap_or(1),
        });
        self.programs.insert(key, Arc::clone(&known));
        Ok(known)
    }

    /// The plan for the hosts that there are. On one host it keeps the nodes that it makes up.
    fn among_nodes(&self, plan: Plan) -> Result<Plan> {
        if !plan.algorithm().is_two_level() || self.nodes.len() < 2 {
            return Ok(plan);
        }
        let algorithm = plan.algorithm();
        plan.with_nodes(&self.nodes).ok_or_else(|| {
            Error::usage(
                format!(
                    "expected up to 256 hosts of different numbers of ranks for {algorithm}, found {}",
                    self.nodes.len()
                ),
                "start as many ranks on each host, or leave the algorithm out by CCL_ALGO",
            )
        })
    }

    /// From how many bytes on messages are read where the sender has them, in a call with such shares; `None`: none is.
    fn read(&self, collective: Collective, share_bytes: usize) -> Option<usize> {
        // Blocks that differ have no common share, and no limit.
        let all = share_bytes.checked_mul(self.n as usize).unwrap_or(0);
        let from = match self.cut.direct {
            Direct::Never | Direct::Slower => return None,
            Direct::WhereFaster if all > most_read_bytes(collective) => return None,
            Direct::Tried { .. } if all > most_read_apart_bytes(collective, self.n) => return None,
            Direct::WhereFaster => read_from_bytes(collective, self.n)? as usize,
            Direct::Tried { far } => {
                let lengths = read_where_tried(collective, self.n, far)?;
                if share_bytes > *lengths.end() {
                    return None;
                }
                *lengths.start()
            }
            Direct::From(bytes) => bytes,
        };
        (share_bytes >= from).then_some(from)
    }

    /// Elements per Move, and what is lent.
    ///
    /// Small enough that copies of one rank overlap with those of the next, large enough that the
    /// cost per slot does not show. Where everything is lent there is nothing to overlap, and nothing
    /// need fit a slot; only scratch should stay in the cache.
    fn chunk_count(
        &self,
        known: &Known,
        (choice, cut, chunk_bytes): (&Choice, &Cut, usize),
        count: usize,
        size: usize,
        lendable: Lent,
    ) -> Result<(usize, Lending)> {
        let program = &known.program;
        let whole = bound_is_whole(program.collective);
        let parts =
            if whole { program.chunks.of(self.n).max(1) } else { 1 } * usize::from(choice.channels.max(1));
        let share = count.div_ceil(parts);
        let share_bytes = share.saturating_mul(size);
        let slot = cut.slot_bytes / size / known.widest;
        if slot == 0 {
            let least = known.widest * size;
            return Err(Error::usage(
                format!("expected slots of {least} bytes for {}, found {}", program.name, cut.slot_bytes),
                "raise CCL_BUFFSIZE, or leave the algorithm out by CCL_ALGO",
            ));
        }
        // What is shorter than the least that is read must fit a slot.
        let direct = self.read(program.collective, share_bytes).map(|from| from.min(cut.slot_bytes));
        let piece_bytes = match chunk_bytes == cut.chunk_bytes {
            true => cut.piece_bytes(program.collective, share_bytes),
            false => chunk_bytes,
        };
        let (most, chunk_bytes, lending) = match (direct, lendable) {
            (Some(from), Lent::All) => {
                let bytes = if program.scratch_chunks > 0 { DIRECT_SCRATCH_BYTES } else { DIRECT_BYTES };
                (usize::MAX, bytes, Lending::Everything { from })
            }
            // Nothing is folded, so all that is longer than a slot is lent.
            (None, Lent::All) if cut.lends_on_the_way && !program.collective.reduces() => {
                (usize::MAX, LONGEST_LENT_BYTES, Lending::Nothing)
            }
            (_, Lent::Never) => (slot, piece_bytes / known.widest, Lending::Never),
            _ => (slot, piece_bytes, Lending::Nothing),
        };
        let chunk = share_bytes.min(chunk_bytes) / size;
        if chunk >= share {
            return Ok((share.clamp(1, most), lending));
        }
        Ok((chunk.next_multiple_of((GRAIN_BYTES / size).max(1)).clamp(1, most), lending))
    }
}

/// Walks the programs of all ranks: a plan that would hang or compute something else never runs.
fn prove(plan: &Plan) -> Result<()> {
    match verify(plan, Depth::Quick) {
        Ok(_) => Ok(()),
        Err(witness) => {
            Err(Error::bug(format!("{}.{} is refused: {witness}", plan.collective(), plan.algorithm())))
        }
    }
}

/// How algorithms are chosen for `n` ranks under these settings, when the farthest peer is reached as `reach`
/// says and all ranks share so many `cores` of one host (0: they do not). `nodes` has the ranks of each host, in
/// the order of ranks; of one host or none nothing is made. Heeds the tuning file.
///
/// # Errors
///
/// A file of `CCL_ALGO_FILE` that holds no algorithm, a tuning file that cannot be read, a name in `CCL_ALGO` that
/// is none, or rules that leave a collective none, or none that reaches the level of determinism.
pub fn selection(config: &Config, n: u32, reach: Reach, cores: u32, nodes: &[u32]) -> Result<Selection> {
    let tuning = Tuning::of(config)?.unwrap_or_default();
    let multicast = match reach {
        Reach::Multicast => device::multicast(config)?,
        _ => Multicast::NONE,
    };
    let channels = match (reach, config.max_nchannels()) {
        (Reach::Devices | Reach::Multicast, None) => Channels::assumed(n),
        _ => Channels::all(most_channels(config)),
    };
    tuned_selection((config, channels), n, (reach, cores, multicast), (nodes, Reach::Memory), &tuning)
}

/// [`selection`] with this tuning and at most so many channels, whatever the settings say. In a host ranks reach each other
/// as `near` says.
pub(crate) fn tuned_selection(
    (config, channels): (&Config, Channels),
    n: u32,
    (reach, cores, multicast): (Reach, u32, Multicast),
    (nodes, near): (&[u32], Reach),
    tuning: &Tuning,
) -> Result<Selection> {
    let level = match config.determinism() {
        Determinism::Run => Level::Run,
        Determinism::Size => Level::Size,
        Determinism::World => Level::World,
    };
    let user = user::algorithms(config, n)?;
    let allow = config.algo().map_or(Ok(Allow::default()), |choices| allow(choices, &user))?;
    let rates = Rates { multicast, ..tuning.rates(reach).on(n, cores) };
    let mut rules = tuning.rules(reach, n);
    if matches!(reach, Reach::Devices | Reach::Multicast) {
        rules.extend(OneShot::rule(config, n, &rules));
    }
    let Channels { collectives: max_channels, messages: max_message_channels } = channels;
    let nodes = Nodes::new(nodes, tuning.rates(near));
    let (advice, max_peers) = (Advice::default(), MOST_PEERS);
    select(Inputs {
        n,
        rates,
        nodes,
        max_channels,
        max_message_channels,
        max_peers,
        level,
        allow,
        user,
        rules,
        advice,
    })
}

/// The same where all ranks are in one process, and calls of so many bytes and more, if any, work in their buffers.
pub(crate) fn mapped_selection(selection: Selection, from: Option<u64>) -> Result<Selection> {
    let Some(from) = from else { return Ok(selection) };
    let mut inputs = selection.inputs().clone();
    inputs.rules.extend(mapped::rules(from, &inputs.rules));
    select(inputs)
}

fn select(inputs: Inputs) -> Result<Selection> {
    Selection::new(inputs).map_err(|error| {
        Error::usage(
            format!(
                "expected CCL_ALGO and CCL_DETERMINISM, or the call's level, to leave an algorithm for {}, found none",
                error.collective
            ),
            "see `ccl plan explain` for the algorithms of each collective",
        )
    })
}

impl Reach {
    /// All of them.
    pub const ALL: [Reach; 6] = [
        Reach::Memory,
        Reach::MemoryDirect,
        Reach::Loopback,
        Reach::Network,
        Reach::Devices,
        Reach::Multicast,
    ];

    /// How `n` processes on one host with so many cores reach each other under these settings, where the system lets them
    /// read each other's memory.
    pub fn of_host(config: &Config, n: u32, cores: u32) -> Reach {
        let roomy = n > 1 && n as usize <= FEW_RANKS && n <= cores;
        match config.direct() {
            Some(0) => Reach::Memory,
            // Which messages are read a trial says, and that must not choose another algorithm.
            None if roomy => Reach::Memory,
            None if is_of_amd() => Reach::of_slots(n),
            _ => Reach::MemoryDirect,
        }
    }

    /// How `n` ranks that could read each other's memory and do not, because slots are faster, reach each other. Blocks that are long
    /// enough to be read are better passed around by more than few, wherever they lie.
    pub(crate) fn of_slots(n: u32) -> Reach {
        if n as usize <= FEW_RANKS { Reach::Memory } else { Reach::MemoryDirect }
    }

    /// The name in tuning files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Reach::Memory => "memory",
            Reach::MemoryDirect => "memory_direct",
            Reach::Loopback => "loopback",
            Reach::Network => "network",
            Reach::Devices => "devices",
            Reach::Multicast => "multicast",
        }
    }

    /// What such links cost on a machine of this one's make that nobody has measured, but for what multicast memory saves,
    /// which depends on settings, too.
    pub fn rates(self) -> Rates {
        match self {
            Reach::Memory => Rates { make: make(), ..Rates::SHARED_MEMORY },
            Reach::MemoryDirect => Rates { make: make(), ..Rates::SHARED_MEMORY_DIRECT },
            Reach::Loopback if is_of_amd() => Rates::LOOPBACK_AMD,
            Reach::Loopback => Rates::LOOPBACK,
            Reach::Network => Rates::SOCKET,
            Reach::Devices | Reach::Multicast => Rates::DEVICES,
        }
    }

    /// Chunks of this length are the fastest where the user has not asked for others: measured from 4
    /// to 64 KiB in memory, to 1 MiB over sockets, for all-reduce on two ranks; not on devices. Shorter ones pay more
    /// for their slots than they gain.
    pub(crate) const fn chunk_bytes(self) -> usize {
        match self {
            Reach::Memory | Reach::MemoryDirect => 32 << 10,
            Reach::Devices | Reach::Multicast => 128 << 10,
            Reach::Loopback | Reach::Network => 256 << 10,
        }
    }
}

/// How the farthest peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Through memory.
    Memory,
    /// Through memory, and each rank may read all others' memory.
    MemoryDirect,
    /// Over a network that does not leave the host.
    Loopback,
    /// Over a network.
    Network,
    /// Through the memory of devices: each rank has one, its own or with others, and reaches all others'.
    Devices,
    /// The same, each has its own, and what a rank sends to all others is stored once, in multicast memory.
    Multicast,
}

/// The setting's rules, spelt out for each collective. A rule for all says nothing about collectives
/// that have none of its algorithms.
fn allow(choices: &Choices, user: &[UserAlgorithm]) -> Result<Allow> {
    let known: Vec<String> = Algorithm::ALL.iter().map(|a| a.name().replace('_', "")).collect();
    if let Some(unknown) = choices.names().find(|name| !known.iter().any(|known| known == name)) {
        return Err(Error::usage(
            format!(
                "expected CCL_ALGO to name algorithms ({}), found {unknown}",
                Algorithm::ALL.map(Algorithm::name).join(", ")
            ),
            "see `ccl plan show` for the algorithms of each collective",
        ));
    }
    let known: Vec<String> = Collective::ALL.iter().map(|c| c.name().replace('_', "")).collect();
    if let Some(unknown) = choices.collectives().find(|name| !known.iter().any(|known| known == name)) {
        let names = Collective::ALL.map(Collective::name).join(", ");
        return Err(Error::usage(
            format!("expected CCL_ALGO to name collectives ({names}), found {unknown}"),
            "write a rule for one collective as in all_reduce:ring",
        ));
    }
    let mut text = Vec::new();
    for collective in Collective::ALL {
        let own = user.iter().any(|user| user.plan().collective() == collective);
        let all: Vec<Algorithm> =
            algorithms(collective).iter().copied().chain(own.then_some(Algorithm::User)).collect();
        let names =
            |algorithms: &[Algorithm]| algorithms.iter().map(|a| a.name()).collect::<Vec<_>>().join(",");
        let allowed: Vec<Algorithm> =
            all.iter().copied().filter(|a| choices.allows(collective.name(), a.name())).collect();
        if !allowed.is_empty() {
            text.push(format!("{collective}:{}", names(&allowed)));
        } else if choices.is_about(collective.name()) {
            return Err(Error::usage(
                format!(
                    "expected CCL_ALGO to leave an algorithm for {collective} ({}), found none",
                    names(&all)
                ),
                "see `ccl plan show` for the algorithms of each collective",
            ));
        }
    }
    text.join(";").parse().map_err(|error| Error::bug(format!("CCL_ALGO: {error}")))
}

/// Channels that the fabric's edges must exist for.
pub(crate) fn most_channels(config: &Config) -> u16 {
    config.max_nchannels().map_or(1, |channels| channels as u16)
}

fn bound_is_whole(collective: Collective) -> bool {
    collective.input() == ccl_plan::Shape::Whole
}

/// The length of a block on average, as far as this rank knows: the same on every rank only where all know all blocks.
fn average_count(collective: Collective, tables: &Tables<'_>) -> usize {
    let counts = match collective {
        Collective::ReduceScatterV | Collective::ScatterV => tables.send_counts,
        _ => tables.recv_counts,
    };
    counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count)) / counts.len().max(1)
}

/// Whether a rank of such a call knows no blocks but those it sends or receives.
fn blocks_are_private(collective: Collective) -> bool {
    matches!(collective, Collective::AllToAllV | Collective::GatherV | Collective::ScatterV)
}

/// What a block is taken for in choices where not all ranks know how long it is.
const PRIVATE_BLOCK_BYTES: usize = 64 << 10;
/// Plans for more ranks are only checked one program at a time when they are first used: walking all
/// of them takes longer than the first call should, and the tests prove the same algorithms.
const MOST_RANKS_PROVEN: u32 = 16;
/// Edges to more peers than this take more memory than they are worth.
const MOST_PEERS: u32 = 512;
/// Decisions found by one probe: 10 KiB where none is made.
const RECENT: usize = 128;
/// Decisions kept; a program that makes more different calls than this decides some again.
const MOST_DECISIONS: usize = 4096;
/// What is read directly is cut into pieces of this length, so that no step takes longer than about a
/// millisecond; shorter where scratch of the same length is needed beside it.
const DIRECT_BYTES: usize = 4 << 20;
const DIRECT_SCRATCH_BYTES: usize = 256 << 10;
