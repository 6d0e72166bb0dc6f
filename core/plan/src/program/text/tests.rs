use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::collective::Collective;
use crate::ids::Place;
use crate::plan::Plan;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, Spot, from, input, output, scratch, to,
};
use crate::program::{Bound, Chunks, Expr, ExtentOf, Finish, Instruction, Loop, Modulo, Program};
use crate::verify::plans;

#[test]
fn every_plan_reads_back() {
    for plan in [1, 2, 3, 4, 5, 9].into_iter().flat_map(|n| plans(n..=n)) {
        for place in [0, plan.n() / 2, plan.n() - 1] {
            let program = plan.program(Place(place), Place(0));
            assert_eq!(program.to_string().parse(), Ok(program));
        }
    }
}

#[test]
fn errors_name_line_expected_and_found() {
    let error = |text: &str| text.parse::<Program>().unwrap_err().to_string();
    let start = "program p\ncollective all_reduce\nchunks n\nscratch 0\nlane 0 of 1\n";
    let body = |line: &str| error(&(start.to_string() + line));
    assert_eq!(error("program p\ncollective sum"), "line 2: expected a collective, found `sum`");
    assert_eq!(error("program p\n"), "line 1: expected `collective`, found the end of the text");
    assert_eq!(body("jump"), "line 6: expected an instruction, found `jump`");
    assert_eq!(
        body("recv in -> to [r+1] chunk 0"),
        "line 6: expected `send` for these operands, found `recv`"
    );
    assert_eq!(
        body("send in -> chunk 0"),
        "line 6: expected `in`, `out`, `scratch`, `from` or `to`, found `chunk`"
    );
    assert_eq!(body("for i in 1..n\n"), "line 6: expected `end` for every `for`, found 1 open loops");
    assert_eq!(body("for j in 1..n\nend"), "line 6: expected `i`, found `j`");
    assert_eq!(body("end"), "line 6: expected an open loop to end, found `end`");
    assert_eq!(body("send in -> to [r+1] chunk 0 1"), "line 6: expected the end of the line, found 1");
}

#[test]
fn comments_and_layout_do_not_matter() {
    let plan = Plan::new(Collective::AllReduce, crate::Algorithm::Ring, 4).unwrap();
    let program = plan.program(Place(0), Place(0));
    let text = program.to_string();
    let loose: Vec<_> = text.lines().map(|line| line.trim().to_string() + "   # why\n\n").collect();
    assert_eq!(loose.concat().parse(), Ok(program));
}

proptest! {
    #[test]
    fn random_programs_read_back(program in programs()) {
        let text = program.to_string();
        prop_assert_eq!(text.parse::<Program>(), Ok(program.clone()), "{}", text);
        prop_assert_eq!(Program::from_bytes(&program.to_bytes()).map(|p| p.instructions), Ok(program.instructions));
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[a-z0-9 \n\\[\\]()+,.:>#-]{0,200}") {
        let _ = text.parse::<Program>();
        let _ = ("program p\ncollective gather\nchunks 1\nscratch 0\nlane 0 of 1\n".to_string() + &text).parse::<Program>();
    }
}

/// An index, and perhaps a span, every how many of it, and in which runs.
type Lies<T> = (T, Option<T>, Option<T>, Option<T>);

/// A sentence of the random program: which operands, which data, which flags.
#[derive(Clone, Debug)]
enum Line {
    Move(Vec<Operand>, Vec<Operand>, ExtentOf, Lies<Node>, Finish),
    Signal(Operand),
    Loop(Bound, Bound, Vec<Line>),
    Barrier,
}

#[derive(Clone, Debug)]
struct Operand(u8, Node, u8);

#[derive(Clone, Debug)]
enum Node {
    Sum(Expr),
    Unary(u8, alloc::boxed::Box<Node>, i32),
    Binary(u8, alloc::boxed::Box<Node>, alloc::boxed::Box<Node>),
}

fn programs() -> impl Strategy<Value = Program> {
    let lanes = prop::collection::vec((0..3_u8, prop::collection::vec(lines(2), 1..6)), 1..3);
    (prop::sample::select(Collective::ALL.to_vec()), lanes, 0..4_u16, 0..3_u16, 0..3_u16).prop_map(
        |(collective, lanes, scratch, constant, per_rank)| {
            let mut b = Builder::new("random", collective, Chunks { constant, per_rank });
            b.scratch_chunks(scratch);
            for (share, lines) in lanes {
                // Expressions have to exist before the lane that uses them.
                let lines: Vec<_> = lines.iter().map(|line| prepare(&mut b, line)).collect();
                b.share(share, 3, |l| lines.iter().for_each(|line| write(l, line)));
            }
            fix_bounds(b.finish())
        },
    )
}

/// A line with its expressions interned.
enum Ready {
    Move(Vec<Spot>, Vec<Spot>, ExtentOf, Lies<Index>, Finish),
    Signal(Spot),
    Loop(Bound, Bound, Vec<Ready>),
    Barrier,
}

fn prepare(b: &mut Builder, line: &Line) -> Ready {
    match line {
        Line::Move(inputs, outputs, of, (index, span, every, run), finish) => {
            let inputs = inputs.iter().map(|operand| spot(b, operand)).collect();
            let outputs = outputs.iter().map(|operand| spot(b, operand)).collect();
            let index = node(b, index);
            let [span, every, run] = [span, every, run].map(|some| some.as_ref().map(|some| node(b, some)));
            Ready::Move(inputs, outputs, *of, (index, span, every, run), *finish)
        }
        Line::Signal(operand) => Ready::Signal(spot(b, operand)),
        Line::Loop(start, end, body) => {
            Ready::Loop(*start, *end, body.iter().map(|line| prepare(b, line)).collect())
        }
        Line::Barrier => Ready::Barrier,
    }
}

fn write(l: &mut LaneBuilder<'_>, line: &Ready) {
    match line {
        Ready::Move(inputs, outputs, of, (index, span, every, run), finish) => {
            let sentence = l.fold_all(inputs).into_all(outputs).finish(*finish);
            let sentence = match (span, every, run) {
                (None, ..) => sentence,
                (Some(span), None, _) => sentence.span(*span),
                (Some(span), Some(every), None) => sentence.span(*span).every(*every),
                (Some(span), Some(every), Some(run)) => sentence.span(*span).every(*every).by(*run),
            };
            sentence.cover(*of, *index);
        }
        Ready::Signal(spot) => l.signal(*spot),
        // The bounds are put in afterwards; here they only have to be told apart.
        Ready::Loop(start, end, body) => {
            l.each(start.constant, end.constant, |l, _| body.iter().for_each(|line| write(l, line)));
        }
        Ready::Barrier => l.barrier(),
    }
}

/// Gives loops bounds of every kind.
fn fix_bounds(mut program: Program) -> Program {
    for (index, instruction) in program.instructions.iter_mut().enumerate() {
        if let Instruction::Loop(Loop { from, to, .. }) = instruction {
            from.n = index as i8 % 3 - 1;
            to.rank = index as i8 % 5 - 2;
            to.vars = [index as i8 % 2, -(index as i8 % 3)];
        }
    }
    program
}

fn spot(b: &mut Builder, Operand(kind, place, tag): &Operand) -> Spot {
    let place = node(b, place);
    match kind {
        0 => input(),
        1 => output(),
        2 => input().block(place),
        3 => output().block(place),
        4 => scratch(place),
        5 => from(place).tag(*tag),
        _ => to(place).tag(*tag),
    }
}

fn node(b: &mut Builder, node: &Node) -> Index {
    let mut id = |n: &Node| match self::node(b, n) {
        Index::Expr(id) => id,
        Index::Term(_) => unreachable!("nodes are expressions"),
    };
    let expr = match node {
        Node::Sum(expr) => *expr,
        Node::Unary(kind, a, constant) => {
            let a = id(a);
            match kind {
                0 => Expr::LowBit(a),
                1 => Expr::ModN(a),
                5 => Expr::Pow2(a),
                6 => Expr::Zeros(a),
                2 => Expr::Mul(a, *constant),
                3 => Expr::Div(a, *constant),
                _ => Expr::Mod(a, *constant),
            }
        }
        Node::Binary(kind, left, right) => {
            let (left, right) = (id(left), id(right));
            match kind {
                0 => Expr::Min(left, right),
                1 => Expr::Max(left, right),
                2 => Expr::Add(left, right),
                4 => Expr::And(left, right),
                _ => Expr::Xor(left, right),
            }
        }
    };
    b.expr(expr)
}

fn lines(depth: u32) -> BoxedStrategy<Line> {
    let operands = || prop::collection::vec(operands(), 1..=4);
    let of = prop::sample::select([ExtentOf::Chunk, ExtentOf::SendBlock, ExtentOf::RecvBlock].to_vec());
    let finish = (any::<bool>(), any::<bool>()).prop_map(|(pre, post)| Finish { pre, post });
    let some = || prop::option::of(nodes());
    let extents = (nodes(), some(), some(), some());
    let moves = (operands(), operands(), of, extents, finish)
        .prop_map(|(inputs, outputs, of, extent, finish)| Line::Move(inputs, outputs, of, extent, finish));
    let flat =
        prop_oneof![8 => moves, 1 => self::operands().prop_map(Line::Signal), 1 => Just(Line::Barrier)];
    if depth == 0 {
        return flat.boxed();
    }
    let bound = any::<i8>().prop_map(|constant| Bound::constant(constant.into()));
    let body = prop::collection::vec(lines(depth - 1), 0..4);
    let nested = (bound.clone(), bound, body).prop_map(|(start, end, body)| Line::Loop(start, end, body));
    prop_oneof![4 => flat, 1 => nested].boxed()
}

fn operands() -> impl Strategy<Value = Operand> {
    (0..7_u8, nodes(), 0..3_u8).prop_map(|(kind, place, tag)| Operand(kind, place, tag))
}

fn nodes() -> impl Strategy<Value = Node> {
    let sum = (any::<i32>(), any::<[i8; 3]>(), any::<[i16; 3]>(), any::<bool>()).prop_map(
        |(constant, [rank, root, n], vars, wraps)| {
            let modulo = if wraps { Modulo::N } else { Modulo::None };
            Node::Sum(Expr::Affine { constant, rank, root, n, vars, modulo })
        },
    );
    sum.prop_recursive(2, 4, 2, |inner| {
        prop_oneof![
            (0..7_u8, inner.clone(), any::<i32>()).prop_map(|(k, a, c)| Node::Unary(k, a.into(), c)),
            (0..5_u8, inner.clone(), inner).prop_map(|(k, a, b)| Node::Binary(k, a.into(), b.into())),
        ]
    })
}
