//! The names that Moves are printed with: NCCL's, derived from the operands.

use alloc::string::String;

use super::{Move, Operand, Program};

impl Program {
    /// The name of a Move: what it does with its operands, as in `recv_reduce_copy_send`.
    ///
    /// *recv* if it takes a slot, *reduce* if it folds, *copy* if it stores to memory as well as
    /// doing something else with the result, *send* if it fills a slot.
    pub fn move_name(&self, m: &Move) -> String {
        let any = |ids: &[u8], wanted: fn(&Operand) -> bool| {
            ids.iter().filter_map(|id| self.operands.get(usize::from(*id))).any(wanted)
        };
        let recv = any(m.inputs.as_slice(), |o| matches!(o, Operand::Receive(_)));
        let reduce = m.inputs.as_slice().len() > 1;
        let send = any(m.outputs.as_slice(), |o| matches!(o, Operand::Send(_)));
        let stores = any(m.outputs.as_slice(), |o| !matches!(o, Operand::Send(_)));
        let copy = stores && (send || recv == reduce);
        let parts = [(recv, "recv"), (reduce, "reduce"), (copy, "copy"), (send, "send")];
        let words: alloc::vec::Vec<&str> =
            parts.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
        if words.is_empty() { "move".into() } else { words.join("_") }
    }

    /// Whether a Move reads or writes a user buffer.
    pub(crate) fn touches_user(&self, m: &Move) -> bool {
        let ids = m.inputs.as_slice().iter().chain(m.outputs.as_slice());
        ids.filter_map(|id| self.operands.get(usize::from(*id)))
            .any(|operand| matches!(operand, Operand::Input(_) | Operand::Output(_)))
    }
}
