//! Writing programs as text.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::LOOP_VARS;
use crate::program::{
    Bound, Edge, Expr, ExprId, ExtentOf, Instruction, Modulo, Move, Operand, OperandId, Program, Stride,
};

pub(super) fn program(program: &Program, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "program {}", program.name)?;
    writeln!(f, "collective {}", program.collective)?;
    let chunks = [(i64::from(program.chunks.per_rank), "n")];
    writeln!(f, "chunks {}", sum(&chunks, i64::from(program.chunks.constant)))?;
    writeln!(f, "scratch {}", program.scratch_chunks)?;
    for lane in &program.lanes {
        writeln!(f, "lane {} of {}", lane.share, lane.shares)?;
        let mut depth = 1_usize;
        let range = usize::from(lane.start)..usize::from(lane.end);
        for step in program.instructions.get(range).unwrap_or_default() {
            depth -= usize::from(*step == Instruction::EndLoop && depth > 1);
            let line = instruction(program, step);
            writeln!(f, "{:indent$}{}", "", line.trim_end(), indent = 2 * depth)?;
            depth += usize::from(matches!(step, Instruction::Loop(_)));
        }
    }
    Ok(())
}

pub(super) fn instruction(program: &Program, instruction: &Instruction) -> String {
    match instruction {
        Instruction::Move(m) => moved(program, m),
        Instruction::Loop(l) => {
            let var = LOOP_VARS.get(usize::from(l.var)).unwrap_or(&"?");
            format!("for {var} in {}..{}", bound(&l.from), bound(&l.to))
        }
        Instruction::EndLoop => "end".into(),
        Instruction::Signal(id) => format!("signal {}", operand(program, *id)),
        Instruction::Wait(id) => format!("wait {}", operand(program, *id)),
        Instruction::Barrier => "barrier".into(),
        Instruction::End => "exit".into(),
    }
}

fn moved(program: &Program, m: &Move) -> String {
    let list = |ids: &[OperandId]| {
        let texts: Vec<String> = ids.iter().map(|id| operand(program, *id)).collect();
        texts.join(", ")
    };
    let finish = match (m.finish.pre, m.finish.post) {
        (false, false) => "",
        (true, false) => "pre",
        (false, true) => "post",
        (true, true) => "pre post",
    };
    let operands = format!("{} -> {}", list(m.inputs.as_slice()), list(m.outputs.as_slice()));
    let of = match m.extent.of {
        ExtentOf::Chunk => "chunk",
        ExtentOf::SendBlock => "send_block",
        ExtentOf::RecvBlock => "recv_block",
    };
    let index = expr(program, m.extent.index);
    let stride = m.extent.stride;
    let lies = [
        ("span", m.extent.span),
        ("every", stride.map(|Stride { every, .. }| every)),
        ("by", stride.and_then(|Stride { run, .. }| run)),
    ];
    let said = lies.iter().filter_map(|(word, id)| Some(format!(" {word} {}", expr(program, (*id)?))));
    let lies: String = said.collect();
    format!("{:<21} {finish:<8}  {operands:<36} {of} {index}{lies}", program.move_name(m))
}

fn operand(program: &Program, id: OperandId) -> String {
    let block = |name: &str, block: Option<ExprId>| match block {
        None => name.to_string(),
        Some(block) => format!("{name}({})", expr(program, block)),
    };
    let edge = |name: &str, Edge { peer, tag }: Edge| match tag {
        0 => format!("{name} {}", expr(program, peer)),
        tag => format!("{name} {}:{tag}", expr(program, peer)),
    };
    match program.operands.get(usize::from(id)) {
        None => "?".into(),
        Some(Operand::Input(at)) => block("in", *at),
        Some(Operand::Output(at)) => block("out", *at),
        Some(Operand::Scratch(cell)) => block("scratch", Some(*cell)),
        Some(Operand::Receive(e)) => edge("from", *e),
        Some(Operand::Send(e)) => edge("to", *e),
    }
}

fn expr(program: &Program, id: ExprId) -> String {
    let Some(found) = program.exprs.get(usize::from(id)) else { return "?".into() };
    if found.references().any(|reference| reference >= id) {
        return "?".into();
    }
    let of = |id: ExprId| expr(program, id);
    match *found {
        Expr::Affine { constant, rank, root, n, vars, modulo } => {
            let [i, j, k] = vars.map(i64::from);
            let terms =
                [(rank.into(), "r"), (root.into(), "root"), (n.into(), "n"), (i, "i"), (j, "j"), (k, "k")];
            let sum = sum(&terms, constant.into());
            if modulo == Modulo::N { format!("[{sum}]") } else { sum }
        }
        Expr::LowBit(a) => format!("lowbit({})", of(a)),
        Expr::Min(a, b) => format!("min({}, {})", of(a), of(b)),
        Expr::Max(a, b) => format!("max({}, {})", of(a), of(b)),
        Expr::Add(a, b) => format!("add({}, {})", of(a), of(b)),
        Expr::Xor(a, b) => format!("xor({}, {})", of(a), of(b)),
        Expr::Mul(a, factor) => format!("mul({}, {factor})", of(a)),
        Expr::Div(a, divisor) => format!("div({}, {divisor})", of(a)),
        Expr::Mod(a, divisor) => format!("mod({}, {divisor})", of(a)),
        Expr::ModN(a) => format!("modn({})", of(a)),
        Expr::And(a, b) => format!("and({}, {})", of(a), of(b)),
        Expr::Pow2(a) => format!("pow2({})", of(a)),
        Expr::Zeros(a) => format!("zeros({})", of(a)),
    }
}

fn bound(bound: &Bound) -> String {
    let [i, j] = bound.vars.map(i64::from);
    sum(&[(bound.rank.into(), "r"), (bound.n.into(), "n"), (i, "i"), (j, "j")], bound.constant.into())
}

/// `2n-i+1`; the constant stands alone if it must.
fn sum(terms: &[(i64, &str)], constant: i64) -> String {
    let mut text = String::new();
    for (coefficient, name) in terms.iter().filter(|(coefficient, _)| *coefficient != 0) {
        text += if *coefficient < 0 {
            "-"
        } else if text.is_empty() {
            ""
        } else {
            "+"
        };
        if coefficient.unsigned_abs() != 1 {
            text += &coefficient.unsigned_abs().to_string();
        }
        text += name;
    }
    match constant {
        0 if !text.is_empty() => text,
        constant if constant < 0 || text.is_empty() => text + &constant.to_string(),
        constant => text + "+" + &constant.to_string(),
    }
}
