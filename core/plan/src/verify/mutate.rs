//! Mutations: plans damaged on purpose, to verify the verifier.
//!
//! Each mutation does one small thing to the program of one role, of all its ranks or of one of
//! them. It is *rejected* if the checker refuses it or a walk fails. What is accepted must be
//! *equivalent*: it either takes the same steps as the undamaged plan in every case (a loop bound
//! that no n of the case reaches, a block length that equals the other side's), or computes the
//! right numbers in every case, by arithmetic that shares nothing with the verifier. Anything else
//! is an escape, and an error.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::{Depth, VerifyReport, Witness, cases, prove_cast, verify};
use crate::collective::Collective;
use crate::cursor::{Action, Cursor};
use crate::ids::{Channel, Rank};
use crate::machine::numbers::Numbers;
use crate::machine::tally::mix;
use crate::machine::{Case, Failure, Fault, Stage, walk};
use crate::plan::{Cast, Plan};
use crate::program::{Expr, ExprId, Extent, ExtentOf, Instruction, Modulo, Move, Operand, Operands, Program};

/// A kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// A Move, signal or wait is missing.
    Step,
    /// A Move covers the next or the previous chunk or block.
    Chunk,
    /// A Move covers one chunk or block more or less, or others.
    Span,
    /// An edge leads to the next or the previous peer.
    Peer,
    /// Edges have one slot less than the plan needs.
    Slots,
    /// A Move takes its length from the other side's block, or from a chunk.
    Extent,
    /// `pre` and `post` are exchanged, or one is turned over.
    Finish,
    /// A loop starts or ends one early or late.
    Bound,
    /// A buffer is taken for the other.
    Buffer,
}

impl Damage {
    /// Every kind.
    pub const ALL: [Damage; 9] = [
        Damage::Step,
        Damage::Chunk,
        Damage::Span,
        Damage::Peer,
        Damage::Slots,
        Damage::Extent,
        Damage::Finish,
        Damage::Bound,
        Damage::Buffer,
    ];
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Damage::Step => "step dropped",
            Damage::Chunk => "chunk off by one",
            Damage::Span => "span off by one",
            Damage::Peer => "peer off by one",
            Damage::Slots => "slots reduced",
            Damage::Extent => "wrong extent",
            Damage::Finish => "finish flags swapped",
            Damage::Bound => "loop bound off by one",
            Damage::Buffer => "wrong buffer",
        })
    }
}

/// What became of a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The checker refused it or a walk failed.
    Rejected,
    /// It does the same, or as well.
    Equivalent,
}

/// A damaged plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// What kind of damage was done.
    pub damage: Damage,
    /// Where, and what became of it.
    pub what: String,
    /// What the verifier said.
    pub verdict: Verdict,
}

/// Applies `count` mutations to a plan and verifies each. Fails with a witness if one is accepted
/// that is not equivalent.
pub fn mutations(plan: &Plan, seed: u64, count: u64) -> Result<VerifyReport, Box<Witness>> {
    let mut report = VerifyReport::default();
    let found = verify(plan, Depth::Quick)?;
    let slots = found.findings.values().map(|finding| finding.slots).max().unwrap_or(1);
    for index in 0..count {
        let damage = Damage::ALL[index as usize % Damage::ALL.len()];
        let Some(mutant) = mutate(plan, damage, slots, mix(seed ^ mix(index)))? else { continue };
        report.mutations += 1;
        match mutant.verdict {
            Verdict::Rejected => report.rejected += 1,
            Verdict::Equivalent => report.equivalent += 1,
        }
    }
    Ok(report)
}

/// Applies one mutation; `None` if the plan has nothing that could be damaged this way. `slots` is
/// the smallest number with which the plan completes.
pub fn mutate(plan: &Plan, damage: Damage, slots: usize, seed: u64) -> Result<Option<Mutant>, Box<Witness>> {
    let mut random = Random(seed);
    let mut all = cases(plan, Depth::Each);
    // The largest cases tell most.
    all.reverse();
    let Some(root) = random.pick(&all).map(|case| case.root) else { return Ok(None) };
    all.retain(|case| case.root == root && case.slots >= slots);
    let Ok(sound) = plan.cast(plan.place_of(root)) else { return Ok(None) };
    let damaged = match damage {
        Damage::Slots if plan.n() == 1 => None,
        Damage::Slots => {
            all.iter_mut().for_each(|case| case.slots = slots - 1);
            Some((Some(sound.clone()), format!("{} of {slots}", slots - 1)))
        }
        _ => damage_cast(plan, &sound, damage, &mut random),
    };
    let Some((damaged, what)) = damaged else { return Ok(None) };
    let rejected = damaged
        .as_ref()
        .is_none_or(|damaged| all.iter().any(|case| prove_cast(plan, damaged.clone(), case).is_err()));
    if let Some(damaged) = damaged.filter(|_| !rejected) {
        for case in &all {
            let outcome = second_opinion(plan, &sound, &damaged, case, damage);
            outcome.map_err(|fault| escape(plan, case, damage, &what, fault))?;
        }
    }
    let verdict = if rejected { Verdict::Rejected } else { Verdict::Equivalent };
    Ok(Some(Mutant { damage, what, verdict }))
}

/// A program with one small thing changed, and which; `None` if there is nothing to damage in this way.
pub fn damaged(program: &Program, damage: Damage, seed: u64) -> Option<(Program, String)> {
    let mut program = program.clone();
    let what = damage_program(&mut program, damage, &mut Random(seed))?;
    Some((program.canonical(), what))
}

/// Whether a plan that the verifier accepted is as good as the sound one.
fn second_opinion(
    plan: &Plan,
    sound: &Cast,
    damaged: &Cast,
    case: &Case,
    damage: Damage,
) -> Result<(), Fault> {
    if damage == Damage::Slots {
        return Err(Fault::Unchecked { reason: "fewer slots than the plan is said to need".into() });
    }
    let (left, right) =
        (Stage::with_cast(plan, case, sound.clone())?, Stage::with_cast(plan, case, damaged.clone())?);
    if (0..case.n).all(|rank| actions(&left, Rank(rank)).eq(actions(&right, Rank(rank)))) {
        return Ok(());
    }
    if plan.collective() == Collective::Barrier {
        return Err(Fault::Unchecked { reason: "a barrier that takes other steps".into() });
    }
    let walked = walk(&right, Numbers::new(&right)).map_err(|failure| failure.fault)?;
    walked.domain.judge(&right)
}

/// All that a rank does, lane by lane.
fn actions<'a>(stage: &'a Stage<'_>, rank: Rank) -> impl Iterator<Item = Action> + 'a {
    let layout = stage.layout(rank);
    let lanes = stage.seat(rank).into_iter().flat_map(move |seat| {
        (0..stage.case.channels).flat_map(move |channel| {
            (0..seat.program.lanes.len()).map(move |lane| (seat, Channel(channel), lane))
        })
    });
    lanes.flat_map(move |(seat, channel, lane)| {
        let mut cursor = Cursor::new(seat.program, lane, channel, &layout, seat.root);
        core::iter::from_fn(move || cursor.next(seat.program, &layout))
    })
}

fn escape(plan: &Plan, case: &Case, damage: Damage, what: &str, fault: Fault) -> Box<Witness> {
    let mut witness = Witness::new(plan, case, None, Failure { at: None, fault });
    witness.plan = format!("{} with {damage} ({what}), accepted by the verifier,", witness.plan);
    witness
}

/// Damages one program, for all places that run it or for one, and says how. `None` if there is
/// nothing to damage; no cast if the checker refuses the result.
fn damage_cast(
    plan: &Plan,
    sound: &Cast,
    damage: Damage,
    random: &mut Random,
) -> Option<(Option<Cast>, String)> {
    let place = random.below(sound.of_place.len());
    let index = usize::from(*sound.of_place.get(place)?);
    let mut program = Program::clone(sound.programs.get(index)?);
    let what = damage_program(&mut program, damage, random)?;
    let Ok(checked) = program.check(plan.n()) else { return Some((None, what)) };
    let mut cast = sound.clone();
    // Of a message's many possible ends only two are seated.
    let seated = !plan.collective().is_message();
    let alone = random.below(2) == 0 && seated;
    if alone {
        cast.of_place[place] = cast.programs.len() as u16;
        cast.programs.push(checked);
    } else {
        cast.programs[index] = checked;
    }
    let scope = if alone { format!("place {place} alone") } else { "all of the role".into() };
    Some((Some(cast), format!("{what}, {scope}")))
}

/// Does the damage and says where.
fn damage_program(program: &mut Program, damage: Damage, random: &mut Random) -> Option<String> {
    let wanted = |instruction: &Instruction| match (damage, instruction) {
        (Damage::Step | Damage::Peer, Instruction::Signal(_) | Instruction::Wait(_)) => true,
        (Damage::Bound, Instruction::Loop(_)) => true,
        (Damage::Bound, _) => false,
        (Damage::Span, Instruction::Move(m)) => m.extent.span.is_some(),
        (_, Instruction::Move(_)) => true,
        _ => false,
    };
    let instructions = program.instructions.iter().enumerate();
    let candidates: Vec<usize> =
        instructions.filter(|(_, instruction)| wanted(instruction)).map(|(at, _)| at).collect();
    let at = *random.pick(&candidates)?;
    let before = program.instruction_text(at);
    let mut instruction = program.instructions[at];
    match (damage, &mut instruction) {
        (Damage::Step, _) => {
            drop_step(program, at);
            return Some(format!("without `{before}`"));
        }
        (Damage::Bound, Instruction::Loop(l)) => {
            let bound = if random.below(2) == 0 { &mut l.from } else { &mut l.to };
            bound.constant += random.sign();
        }
        (Damage::Chunk, Instruction::Move(m)) => {
            m.extent.index = shifted(program, m.extent.index, random.sign());
        }
        (Damage::Span, Instruction::Move(m)) => {
            let Extent { span, stride, .. } = &mut m.extent;
            let stride = stride.iter_mut().flat_map(|stride| [Some(&mut stride.every), stride.run.as_mut()]);
            let mut lengths: Vec<&mut ExprId> = [span.as_mut()].into_iter().chain(stride).flatten().collect();
            let one = random.below(lengths.len());
            let length = lengths.get_mut(one)?;
            **length = moved(program, **length, random.sign());
        }
        (Damage::Extent, Instruction::Move(m)) => {
            let others = [ExtentOf::Chunk, ExtentOf::SendBlock, ExtentOf::RecvBlock];
            m.extent.of =
                *random.pick(&others.into_iter().filter(|of| *of != m.extent.of).collect::<Vec<_>>())?;
        }
        (Damage::Finish, Instruction::Move(m)) => {
            let finish = &mut m.finish;
            match random.below(3) {
                0 if finish.pre != finish.post => core::mem::swap(&mut finish.pre, &mut finish.post),
                1 => finish.pre = !finish.pre,
                _ => finish.post = !finish.post,
            }
        }
        (_, instruction) => operand_damage(program, instruction, damage, random)?,
    }
    program.instructions[at] = instruction;
    Some(format!("`{before}` became `{}`", program.instruction_text(at)))
}

/// Replaces one operand of an instruction.
fn operand_damage(
    program: &mut Program,
    instruction: &mut Instruction,
    damage: Damage,
    random: &mut Random,
) -> Option<()> {
    match instruction {
        Instruction::Signal(id) | Instruction::Wait(id) => *id = other_operand(program, *id, damage, random)?,
        Instruction::Move(Move { inputs, outputs, .. }) => {
            let list = if random.below(2) == 0 { inputs } else { outputs };
            let mut ids = list.as_slice().to_vec();
            let k = random.below(ids.len());
            *ids.get_mut(k)? = other_operand(program, ids[k], damage, random)?;
            *list = Operands::new(&ids)?;
        }
        _ => return None,
    }
    Some(())
}

fn other_operand(program: &mut Program, id: u8, damage: Damage, random: &mut Random) -> Option<u8> {
    let mut operand = *program.operands.get(usize::from(id))?;
    match (&mut operand, damage) {
        (Operand::Receive(edge) | Operand::Send(edge), Damage::Peer) => {
            edge.peer = shifted(program, edge.peer, random.sign());
        }
        (Operand::Input(block), Damage::Buffer) => operand = Operand::Output(*block),
        (Operand::Output(block), Damage::Buffer) => operand = Operand::Input(*block),
        (Operand::Scratch(_), Damage::Buffer) => operand = Operand::Output(None),
        _ => return None,
    }
    program.operands.push(operand);
    u8::try_from(program.operands.len() - 1).ok()
}

fn shifted(program: &mut Program, id: ExprId, by: i32) -> ExprId {
    let Some(Expr::Affine { constant, rank, root, n, vars, .. }) =
        program.exprs.get(usize::from(id)).copied()
    else {
        let moved = moved(program, id, by);
        return push(program, Expr::ModN(moved));
    };
    push(program, Expr::Affine { constant: constant + by, rank, root, n, vars, modulo: Modulo::N })
}

/// One more or less.
fn moved(program: &mut Program, id: ExprId, by: i32) -> ExprId {
    let by = push(program, Expr::constant(by));
    push(program, Expr::Add(id, by))
}

fn push(program: &mut Program, expr: Expr) -> ExprId {
    program.exprs.push(expr);
    (program.exprs.len() - 1) as ExprId
}

fn drop_step(program: &mut Program, at: usize) {
    program.instructions.remove(at);
    let fix = |index: &mut u16| *index -= u16::from(usize::from(*index) > at);
    for instruction in &mut program.instructions {
        if let Instruction::Loop(l) = instruction {
            fix(&mut l.end);
        }
    }
    for lane in &mut program.lanes {
        fix(&mut lane.start);
        fix(&mut lane.end);
    }
}

/// A reproducible sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn sign(&mut self) -> i32 {
        if self.below(2) == 0 { 1 } else { -1 }
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::verify::plans;

    #[test]
    fn no_damage_escapes() {
        let mut report = VerifyReport::default();
        for plan in vec![2, 3, 5].into_iter().flat_map(|n| plans(n..=n)) {
            report += &mutations(&plan, 1, 24).unwrap_or_else(|witness| panic!("{witness}"));
        }
        assert_eq!(report.mutations, report.rejected + report.equivalent);
        assert!(report.rejected * 10 > report.mutations * 8, "{report:?}");
    }
}
