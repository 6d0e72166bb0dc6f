//! What a call may lend to its peers instead of copying it for them.

use ccl_plan::program::{Checked, Instruction, Operand, OperandId};
use ccl_plan::{Algorithm, Collective, Place, Plan, ReduceOp};

use crate::error::{Error, Result};

/// What a call lends instead of copying it to a slot: parts of at least `from` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lending {
    Nothing,
    /// What lies in the send buffer.
    Inputs {
        from: usize,
    },
    /// That, and what is kept in the receive buffer.
    Everything {
        from: usize,
    },
}

/// What the programs of all ranks send, if all of that lies in user memory, unchanged until the call
/// has ended, so that it may be lent.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Lent {
    /// Not all of it does.
    #[default]
    No,
    /// All as it is in the send buffer.
    Everything,
    /// Some is a result that the rank has just written and keeps: lines that its core has changed,
    /// which take another core longer to read than lines it only has.
    WithResults,
}

/// [`Lent`] by what the reduce operation does beside the fold.
#[derive(Clone, Copy, Default)]
pub(super) struct Lendable {
    plain: Lent,
    scaled: Lent,
    averaged: Lent,
}

impl Lendable {
    /// One-shot is out: in place it folds into what it has just lent. In all others whatever
    /// overwrites lent input arrives from a rank that has read it: chunk c of a two-shot's result
    /// comes from the rank that folded chunk c. Reduce is out because its root alone would work.
    pub(super) fn of(plan: &Plan, root: Place) -> Result<Lendable> {
        if plan.algorithm() == Algorithm::OneShot || plan.collective() == Collective::Reduce {
            return Ok(Lendable::default());
        }
        let cast = plan.cast(root).map_err(|error| Error::bug(format!("{}: {error}", plan.algorithm())))?;
        let all = |scales: bool, divides: bool| {
            let each = cast.programs.iter().map(|program| lent(program, scales, divides));
            each.fold(Lent::Everything, |all, one| match (all, one) {
                (Lent::No, _) | (_, Lent::No) => Lent::No,
                (Lent::Everything, Lent::Everything) => Lent::Everything,
                _ => Lent::WithResults,
            })
        };
        Ok(Lendable { plain: all(false, false), scaled: all(true, false), averaged: all(false, true) })
    }

    pub(super) fn under(self, reduce_op: ReduceOp) -> Lent {
        match reduce_op {
            ReduceOp::PreMulSum => self.scaled,
            ReduceOp::Average => self.averaged,
            _ => self.plain,
        }
    }
}

fn lent(program: &Checked, scales: bool, divides: bool) -> Lent {
    let operand = |id: &OperandId| program.operands[usize::from(*id)];
    let mut all = Lent::Everything;
    for instruction in &program.instructions {
        let Instruction::Move(m) = instruction else { continue };
        let sends = m.outputs.as_slice().iter().any(|id| matches!(operand(id), Operand::Send(_)));
        let keeps = m.outputs.as_slice().iter().any(|id| matches!(operand(id), Operand::Output(_)));
        let changed = m.finish.pre && scales || m.finish.post && divides;
        let source = match m.inputs.as_slice() {
            [input] if !changed => Some(operand(input)),
            _ => None,
        };
        match source {
            _ if !sends => {}
            Some(Operand::Input(_)) => {}
            Some(Operand::Output(_)) => all = Lent::WithResults,
            _ if keeps => all = Lent::WithResults,
            _ => return Lent::No,
        }
    }
    all
}
