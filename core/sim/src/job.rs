//! The job: the programs of all places, and how the data of one call is cut for them.

use ccl_plan::layout::Layout;
use ccl_plan::machine::Case;
use ccl_plan::program::{Checked, ExtentOf, Program};
use ccl_plan::{Algorithm, Channel, Collective, Place, Plan, Rank};

use crate::error::{Error, Result};

/// A plan and the size of one call.
///
/// Everything is counted in places; the plan's order says which rank a place is.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) collective: Collective,
    pub(crate) case: Case,
    pub(crate) element_bytes: u64,
    /// The different programs.
    pub(crate) roles: Vec<Text>,
    /// For each place, the index of its program.
    pub(crate) of_place: Vec<u16>,
    /// Whether places are on a ring and talk to their neighbours only.
    pub(crate) is_ring: bool,
    order: Option<Vec<Rank>>,
}

/// A program whose lanes each have all of the data, and what they have in truth.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) program: Program,
    /// Share and number of shares of each lane.
    shares: Vec<(u8, u8)>,
}

/// A run of equal passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Section {
    /// Its first pass.
    pub(crate) pass: usize,
    /// How many passes of the same length follow each other.
    pub(crate) repeat: usize,
}

impl Job {
    /// The job of `plan` with the data of `case`. Blocks are even, and buffers lie apart or not.
    ///
    /// Fails for messages, which have no collective time, and for blocks of different lengths.
    pub fn new(plan: &Plan, case: &Case, element_bytes: usize) -> Result<Job> {
        if plan.collective().is_message() {
            return Err(Error::usage(
                format!("expected a collective, found {}", plan.collective()),
                "a message takes the time of its link",
            ));
        }
        if case.blocks.is_some() || case.n != plan.n() || case.slots == 0 || case.chunk_count == 0 {
            return Err(Error::usage(
                format!("expected even blocks, slots, chunks, and {} ranks, found {case}", plan.n()),
                "the case must suit the plan",
            ));
        }
        let cast = plan.cast(plan.place_of(case.root));
        let cast = cast.map_err(|error| Error::usage(error.to_string(), "choose another algorithm"))?;
        let programs = cast.programs.into_iter().map(|program: Checked| Program::clone(&program)).collect();
        let mut job = Job::of_programs(programs, cast.of_place, case, element_bytes)?;
        job.order = plan.order().map(<[Rank]>::to_vec);
        job.is_ring = plan.algorithm() == Algorithm::Ring && job.roles.len() == 1 && case.n > 1;
        Ok(job)
    }

    /// The job of programs of the caller's: `programs[of_place[p]]` is what place p runs. Places are ranks.
    pub fn of_programs(
        programs: Vec<Program>,
        of_place: Vec<u16>,
        case: &Case,
        element_bytes: usize,
    ) -> Result<Job> {
        let known = of_place.iter().all(|role| usize::from(*role) < programs.len());
        let Some(collective) = programs.first().map(|program| program.collective).filter(|_| known) else {
            return Err(Error::usage("expected a program for every place", "add the missing programs"));
        };
        let roles = programs.into_iter().map(Text::new).collect();
        let element_bytes = element_bytes as u64;
        Ok(Job {
            collective,
            case: case.clone(),
            element_bytes,
            roles,
            of_place,
            is_ring: false,
            order: None,
        })
    }

    /// Number of ranks.
    pub fn n(&self) -> u32 {
        self.of_place.len() as u32
    }

    /// Number of channels.
    pub fn channels(&self) -> u16 {
        self.case.channels.max(1)
    }

    /// Bytes of the vector, or of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks = if self.layout(0, 0).is_whole() { 1 } else { u64::from(self.n()) };
        self.case.count as u64 * blocks * self.element_bytes
    }

    /// The index of a place's program.
    pub(crate) fn role(&self, place: u32) -> usize {
        usize::from(self.of_place[place as usize])
    }

    /// The rank at a place.
    pub(crate) fn rank(&self, place: u32) -> Rank {
        self.order.as_ref().map_or(Rank(place), |order| order[place as usize])
    }

    /// The place of the root.
    pub(crate) fn root(&self) -> Place {
        let root = self.case.root;
        let place = |order: &Vec<Rank>| order.iter().position(|rank| *rank == root).unwrap_or(0) as u32;
        Place(self.order.as_ref().map_or(root.0, place))
    }

    /// A layout of `count` elements, of the vector or of each block, that are cut no further.
    pub(crate) fn layout(&self, place: u32, count: usize) -> Layout<'static> {
        let Case { chunk_count, grain_count, .. } = self.case;
        Layout { grain_count, ..Layout::even(self.collective, self.n(), Rank(place), count, chunk_count) }
    }

    /// The runs of equal passes of a channel: many full ones, then those in which some lane ends.
    pub(crate) fn sections(&self, channel: Channel) -> Vec<Section> {
        if self.collective == Collective::Barrier {
            return vec![Section { pass: 0, repeat: 1 }];
        }
        let lengths = self.roles.iter().flat_map(|text| (0..text.shares.len()).map(move |lane| (text, lane)));
        let passes: Vec<(usize, usize)> = lengths
            .map(|(text, lane)| (self.length(text, lane, channel), self.pass_count(text)))
            .map(|(length, whole_pass)| (length / whole_pass, length.div_ceil(whole_pass)))
            .collect();
        let full = passes.iter().map(|(full, _)| *full).min().unwrap_or(0);
        let most = passes.iter().map(|(_, all)| *all).max().unwrap_or(0);
        let full_run = (full > 0).then_some(Section { pass: 0, repeat: full });
        full_run.into_iter().chain((full..most).map(|pass| Section { pass, repeat: 1 })).collect()
    }

    /// Elements of a lane's part that a pass covers.
    pub(crate) fn count(&self, text: &Text, lane: usize, channel: Channel, pass: usize) -> usize {
        let whole_pass = self.pass_count(text);
        self.length(text, lane, channel).saturating_sub(pass * whole_pass).min(whole_pass)
    }

    /// Elements that a full pass covers.
    fn pass_count(&self, text: &Text) -> usize {
        let is_whole = self.layout(0, 0).is_whole();
        let chunks = if is_whole { text.program.chunks.of(self.n()) } else { 1 };
        (chunks * self.case.chunk_count).max(1)
    }

    /// Elements of a lane's part of a channel.
    fn length(&self, text: &Text, lane: usize, channel: Channel) -> usize {
        let uncut = Layout {
            channels: self.channels(),
            chunk_count: usize::MAX / 4,
            ..self.layout(0, self.case.count)
        };
        let (share, shares) = text.shares[lane];
        let part = uncut.part(channel, share, shares);
        match uncut.is_whole() {
            true => uncut.pass_chunks(part, ccl_plan::program::Chunks::ONE, 0).chunk(0).len(),
            false => uncut.block_pass(ExtentOf::SendBlock, Rank(0), part, 0).len(),
        }
    }
}

impl Text {
    fn new(mut program: Program) -> Text {
        let shares = program.lanes.iter().map(|lane| (lane.share, lane.shares)).collect();
        for lane in &mut program.lanes {
            (lane.share, lane.shares) = (0, 1);
        }
        Text { program, shares }
    }

    pub(crate) fn lanes(&self) -> usize {
        self.shares.len()
    }
}
