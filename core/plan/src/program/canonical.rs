//! The canonical form: expressions and operands numbered by first use, none twice, none unused.

use alloc::vec;
use alloc::vec::Vec;

use super::{Edge, Expr, ExprId, Extent, Instruction, Move, Operand, OperandId, Operands, Program, Stride};

impl Program {
    /// The same program with expressions and operands numbered by first use. Equal programs have
    /// equal canonical forms; an index out of range stays out of range.
    pub fn canonical(&self) -> Program {
        let mut renumber = Renumber::new(self);
        let instructions = self.instructions.iter().map(|i| renumber.instruction(i)).collect();
        let Renumber { exprs, operands, .. } = renumber;
        Program { instructions, exprs, operands, lanes: self.lanes.clone(), name: self.name.clone(), ..*self }
    }
}

struct Renumber<'a> {
    old: &'a Program,
    exprs: Vec<Expr>,
    operands: Vec<Operand>,
    known_exprs: Vec<Option<ExprId>>,
    known_operands: Vec<Option<OperandId>>,
}

impl<'a> Renumber<'a> {
    fn new(old: &'a Program) -> Self {
        Renumber {
            old,
            exprs: Vec::new(),
            operands: Vec::new(),
            known_exprs: vec![None; old.exprs.len()],
            known_operands: vec![None; old.operands.len()],
        }
    }

    fn instruction(&mut self, instruction: &Instruction) -> Instruction {
        match *instruction {
            Instruction::Move(m) => {
                let (inputs, outputs) = (self.operands(m.inputs), self.operands(m.outputs));
                let extent = self.extent(m.extent);
                Instruction::Move(Move { inputs, outputs, extent, finish: m.finish })
            }
            Instruction::Signal(id) => Instruction::Signal(self.operand(id)),
            Instruction::Wait(id) => Instruction::Wait(self.operand(id)),
            other => other,
        }
    }

    fn extent(&mut self, Extent { of, index, span, stride }: Extent) -> Extent {
        let (index, span) = (self.expr(index), span.map(|span| self.expr(span)));
        let stride = stride.map(|Stride { every, run }| Stride {
            every: self.expr(every),
            run: run.map(|run| self.expr(run)),
        });
        Extent { of, index, span, stride }
    }

    fn operands(&mut self, operands: Operands) -> Operands {
        let ids: Vec<OperandId> = operands.as_slice().iter().map(|id| self.operand(*id)).collect();
        Operands::new(&ids).unwrap_or_default()
    }

    fn operand(&mut self, id: OperandId) -> OperandId {
        let Some(old) = self.old.operands.get(usize::from(id)) else { return OperandId::MAX };
        if let Some(new) = self.known_operands[usize::from(id)] {
            return new;
        }
        let new = match *old {
            Operand::Input(block) => Operand::Input(block.map(|block| self.expr(block))),
            Operand::Output(block) => Operand::Output(block.map(|block| self.expr(block))),
            Operand::Scratch(cell) => Operand::Scratch(self.expr(cell)),
            Operand::Receive(edge) => Operand::Receive(self.edge(edge)),
            Operand::Send(edge) => Operand::Send(self.edge(edge)),
        };
        let new = OperandId::try_from(place(&mut self.operands, new)).unwrap_or(OperandId::MAX);
        self.known_operands[usize::from(id)] = Some(new);
        new
    }

    fn edge(&mut self, edge: Edge) -> Edge {
        Edge { peer: self.expr(edge.peer), tag: edge.tag }
    }

    /// References always point backwards, so this ends; one that does not becomes out of range.
    fn expr(&mut self, id: ExprId) -> ExprId {
        let Some(old) = self.old.exprs.get(usize::from(id)) else { return ExprId::MAX };
        if let Some(new) = self.known_exprs[usize::from(id)] {
            return new;
        }
        let new = old.map(|reference| if reference < id { self.expr(reference) } else { ExprId::MAX });
        let new = ExprId::try_from(place(&mut self.exprs, new)).unwrap_or(ExprId::MAX);
        self.known_exprs[usize::from(id)] = Some(new);
        new
    }
}

fn place<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}
