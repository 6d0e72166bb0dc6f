//! Reading programs from text.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::lexer::{Line, Parsed, Token};
use super::{LOOP_VARS, TextError};
use crate::collective::Collective;
use crate::program::{
    Bound, Chunks, Edge, Expr, ExprId, Extent, ExtentOf, Finish, Instruction, Lane, Loop, MAX_LOOP_DEPTH,
    Modulo, Move, Operand, OperandId, Operands, Program, Stride,
};

pub(super) fn program(text: &str) -> Parsed<Program> {
    let last = text.lines().count();
    let mut lines = text.lines().enumerate().filter_map(|(index, line)| Line::new(index, line));
    let mut header = |keyword: &str| -> Parsed<Line<'_>> {
        let end = TextError {
            line: last,
            expected: format!("`{keyword}`"),
            found: "the end of the text".to_string(),
        };
        let mut line = lines.next().ok_or(end)?;
        line.expect(keyword)?;
        Ok(line)
    };
    let name = header("program")?.remainder().to_string();
    let mut line = header("collective")?;
    let word = line.word("a collective")?;
    let collective = word.parse::<Collective>();
    let collective = collective.map_err(|_| line.error("a collective".to_string(), format!("`{word}`")))?;
    line.end()?;
    let chunks = chunks(header("chunks")?)?;
    let mut line = header("scratch")?;
    let scratch_chunks = line.number("a number of cells")?;
    line.end()?;
    let mut parser = Parser {
        program: Program {
            name,
            collective,
            chunks,
            scratch_chunks,
            lanes: Vec::new(),
            instructions: Vec::new(),
            operands: Vec::new(),
            exprs: Vec::new(),
        },
        open: Vec::new(),
    };
    for line in lines {
        parser.line(line)?;
    }
    parser.close(last)?;
    Ok(parser.program.canonical())
}

fn chunks(mut line: Line<'_>) -> Parsed<Chunks> {
    let start = line;
    let sum = Sum::parse(&mut line)?;
    line.end()?;
    let rest = Sum { constant: 0, n: 0, ..sum };
    match (u16::try_from(sum.constant), u16::try_from(sum.n)) {
        (Ok(constant), Ok(per_rank)) if rest == Sum::default() => Ok(Chunks { constant, per_rank }),
        _ => start.fail("a number of chunks such as `n` or `2n+1`"),
    }
}

struct Parser {
    program: Program,
    /// Open loops, by the index of their instruction.
    open: Vec<usize>,
}

impl Parser {
    fn line(&mut self, mut line: Line<'_>) -> Parsed<()> {
        let start = line;
        let word = line.word("an instruction or `lane`")?;
        if word == "lane" {
            return self.lane(start.number, line);
        }
        if self.program.lanes.is_empty() {
            return start.fail("`lane`");
        }
        let instruction = match word {
            "for" => self.open(&mut line)?,
            "end" => self.end(start)?,
            "barrier" => Instruction::Barrier,
            "exit" => Instruction::End,
            "signal" => Instruction::Signal(self.operand(&mut line)?),
            "wait" => Instruction::Wait(self.operand(&mut line)?),
            name => self.moved(name, start, &mut line)?,
        };
        line.end()?;
        self.program.instructions.push(instruction);
        let end = narrow(self.program.instructions.len());
        if let Some(lane) = self.program.lanes.last_mut() {
            lane.end = end;
        }
        Ok(())
    }

    fn lane(&mut self, number: usize, mut line: Line<'_>) -> Parsed<()> {
        self.close(number)?;
        let share = line.number("a share")?;
        line.expect("of")?;
        let shares = line.number("a number of shares")?;
        line.end()?;
        let start = narrow(self.program.instructions.len());
        self.program.lanes.push(Lane { start, end: start, share, shares });
        Ok(())
    }

    fn close(&self, line: usize) -> Parsed<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let found = format!("{} open loops", self.open.len());
        Err(TextError { line, expected: "`end` for every `for`".to_string(), found })
    }

    fn open(&mut self, line: &mut Line<'_>) -> Parsed<Instruction> {
        let before = *line;
        let name = line.word("a loop variable")?;
        let depth = self.open.len();
        if depth >= MAX_LOOP_DEPTH || name != LOOP_VARS[depth] {
            let expected =
                LOOP_VARS.get(depth).map_or("at most three nested loops".to_string(), |v| format!("`{v}`"));
            return Err(before.error(expected, format!("`{name}`")));
        }
        line.expect("in")?;
        let from = bound(line)?;
        line.expect("..")?;
        let to = bound(line)?;
        self.open.push(self.program.instructions.len());
        Ok(Instruction::Loop(Loop { var: depth as u8, from, to, end: 0 }))
    }

    fn end(&mut self, line: Line<'_>) -> Parsed<Instruction> {
        let Some(open) = self.open.pop() else { return line.fail("an open loop to end") };
        let at = narrow(self.program.instructions.len());
        if let Instruction::Loop(l) = &mut self.program.instructions[open] {
            l.end = at;
        }
        Ok(Instruction::EndLoop)
    }

    fn moved(&mut self, name: &str, start: Line<'_>, line: &mut Line<'_>) -> Parsed<Instruction> {
        if !name.split('_').all(|part| ["recv", "reduce", "copy", "send"].contains(&part)) {
            return start.fail("an instruction");
        }
        let finish = Finish { pre: line.accept("pre"), post: line.accept("post") };
        let inputs = self.operands(line)?;
        line.expect("->")?;
        let outputs = self.operands(line)?;
        let of = match () {
            () if line.accept("chunk") => ExtentOf::Chunk,
            () if line.accept("send_block") => ExtentOf::SendBlock,
            () if line.accept("recv_block") => ExtentOf::RecvBlock,
            () => return line.fail("`chunk`, `send_block` or `recv_block`"),
        };
        let index = self.expr(line)?;
        let span = self.after("span", line)?;
        let stride = match self.after("every", line)? {
            None => None,
            Some(every) => Some(Stride { every, run: self.after("by", line)? }),
        };
        let m = Move { inputs, outputs, extent: Extent { of, index, span, stride }, finish };
        let derived = self.program.move_name(&m);
        if derived != name {
            return Err(start.error(format!("`{derived}` for these operands"), format!("`{name}`")));
        }
        Ok(Instruction::Move(m))
    }

    /// The expression after a word, if that comes next.
    fn after(&mut self, word: &str, line: &mut Line<'_>) -> Parsed<Option<ExprId>> {
        if line.accept(word) { Ok(Some(self.expr(line)?)) } else { Ok(None) }
    }

    fn operands(&mut self, line: &mut Line<'_>) -> Parsed<Operands> {
        let before = *line;
        let mut ids = Vec::new();
        loop {
            ids.push(self.operand(line)?);
            if !line.accept(",") {
                break;
            }
        }
        Operands::new(&ids).ok_or(before.error("at most four operands".to_string(), ids.len().to_string()))
    }

    fn operand(&mut self, line: &mut Line<'_>) -> Parsed<OperandId> {
        let before = *line;
        let operand = match line.word("an operand")? {
            "in" => Operand::Input(self.block(line)?),
            "out" => Operand::Output(self.block(line)?),
            "scratch" => match self.block(line)? {
                Some(cell) => Operand::Scratch(cell),
                None => return line.fail("`(`"),
            },
            "from" => Operand::Receive(self.edge(line)?),
            "to" => Operand::Send(self.edge(line)?),
            _ => return before.fail("`in`, `out`, `scratch`, `from` or `to`"),
        };
        let index = intern(&mut self.program.operands, operand);
        OperandId::try_from(index)
            .map_err(|_| before.error("at most 256 operands".to_string(), "one more".to_string()))
    }

    fn block(&mut self, line: &mut Line<'_>) -> Parsed<Option<ExprId>> {
        if !line.accept("(") {
            return Ok(None);
        }
        let expr = self.expr(line)?;
        line.expect(")")?;
        Ok(Some(expr))
    }

    fn edge(&mut self, line: &mut Line<'_>) -> Parsed<Edge> {
        let peer = self.expr(line)?;
        let tag = if line.accept(":") { line.number("a tag")? } else { 0 };
        Ok(Edge { peer, tag })
    }

    fn expr(&mut self, line: &mut Line<'_>) -> Parsed<ExprId> {
        self.nested(line, 0)
    }

    fn nested(&mut self, line: &mut Line<'_>, depth: usize) -> Parsed<ExprId> {
        if depth > MAX_NESTING {
            return line.fail("fewer nested functions");
        }
        let before = *line;
        let expr = match line.peek() {
            Token::Word(name) if FUNCTIONS.contains(&name) => {
                line.next();
                line.expect("(")?;
                let a = self.nested(line, depth + 1)?;
                let expr = self.apply(name, a, line, depth)?;
                line.expect(")")?;
                expr
            }
            Token::Sign("[") => {
                line.next();
                let sum = Sum::parse(line)?.expr(Modulo::N, before)?;
                line.expect("]")?;
                sum
            }
            _ => Sum::parse(line)?.expr(Modulo::None, before)?,
        };
        Ok(narrow(intern(&mut self.program.exprs, expr)))
    }

    fn apply(&mut self, name: &str, a: ExprId, line: &mut Line<'_>, depth: usize) -> Parsed<Expr> {
        match name {
            "lowbit" => return Ok(Expr::LowBit(a)),
            "modn" => return Ok(Expr::ModN(a)),
            "pow2" => return Ok(Expr::Pow2(a)),
            "zeros" => return Ok(Expr::Zeros(a)),
            _ => line.expect(",")?,
        }
        if let "mul" | "div" | "mod" = name {
            let constant = line.number("a constant")?;
            return Ok(match name {
                "mul" => Expr::Mul(a, constant),
                "div" => Expr::Div(a, constant),
                _ => Expr::Mod(a, constant),
            });
        }
        let b = self.nested(line, depth + 1)?;
        Ok(match name {
            "min" => Expr::Min(a, b),
            "max" => Expr::Max(a, b),
            "add" => Expr::Add(a, b),
            "and" => Expr::And(a, b),
            _ => Expr::Xor(a, b),
        })
    }
}

/// A sum as it is written, before it is known what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    constant: i64,
    rank: i64,
    root: i64,
    n: i64,
    vars: [i64; 3],
}

impl Sum {
    fn parse(line: &mut Line<'_>) -> Parsed<Sum> {
        let mut sum = Sum::default();
        let mut sign = if line.accept("-") { -1 } else { 1 };
        loop {
            sum.term(sign, line)?;
            sign = match () {
                () if line.accept("+") => 1,
                () if line.accept("-") => -1,
                () => return Ok(sum),
            };
        }
    }

    fn term(&mut self, sign: i64, line: &mut Line<'_>) -> Parsed<()> {
        let before = *line;
        let number = match line.peek() {
            Token::Number(number) => {
                line.next();
                Some(number)
            }
            _ => None,
        };
        let named = match line.peek() {
            Token::Word("r") => Some(&mut self.rank),
            Token::Word("root") => Some(&mut self.root),
            Token::Word("n") => Some(&mut self.n),
            Token::Word("i") => Some(&mut self.vars[0]),
            Token::Word("j") => Some(&mut self.vars[1]),
            Token::Word("k") => Some(&mut self.vars[2]),
            _ => None,
        };
        let slot = match (named, number) {
            (None, None) => return before.fail("a sum of `r`, `root`, `n`, `i`, `j`, `k` and a number"),
            (None, Some(_)) => &mut self.constant,
            (Some(slot), _) => {
                line.next();
                slot
            }
        };
        let term = number.unwrap_or(1).checked_mul(sign).and_then(|term| slot.checked_add(term));
        *slot = term.ok_or(before.error("a smaller number".to_string(), "an overflow".to_string()))?;
        Ok(())
    }

    fn expr(self, modulo: Modulo, at: Line<'_>) -> Parsed<Expr> {
        let fits = || -> Option<Expr> {
            let mut vars = [0; 3];
            for (narrow, wide) in vars.iter_mut().zip(self.vars) {
                *narrow = i16::try_from(wide).ok()?;
            }
            Some(Expr::Affine {
                constant: self.constant.try_into().ok()?,
                rank: self.rank.try_into().ok()?,
                root: self.root.try_into().ok()?,
                n: self.n.try_into().ok()?,
                vars,
                modulo,
            })
        };
        fits().ok_or(
            at.error("coefficients of 8 bits, 16 for loop variables".to_string(), "larger ones".to_string()),
        )
    }
}

fn bound(line: &mut Line<'_>) -> Parsed<Bound> {
    let before = *line;
    let sum = Sum::parse(line)?;
    let fits = || -> Option<Bound> {
        let plain = sum.root == 0 && sum.vars[2] == 0;
        plain.then_some(Bound {
            constant: sum.constant.try_into().ok()?,
            n: sum.n.try_into().ok()?,
            rank: sum.rank.try_into().ok()?,
            vars: [sum.vars[0].try_into().ok()?, sum.vars[1].try_into().ok()?],
        })
    };
    fits().ok_or(
        before.error("a bound of `r`, `n`, `i`, `j` and a number".to_string(), "another sum".to_string()),
    )
}

fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

fn narrow(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

const FUNCTIONS: [&str; 12] =
    ["lowbit", "min", "max", "add", "xor", "mul", "div", "mod", "modn", "and", "pow2", "zeros"];
/// Far above what the checker allows; keeps hostile texts off the stack's end.
const MAX_NESTING: usize = 32;
