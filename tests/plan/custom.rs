//! Algorithms that arrive as text: read, checked, verified, and refused with words.

use ccl_plan::machine::numbers::Numbers;
use ccl_plan::machine::{Buffers, Case, Stage, walk};
use ccl_plan::plan::Cast;
use ccl_plan::program::Program;
use ccl_plan::select::UserAlgorithm;
use ccl_plan::verify::mutate::{Damage, damaged};
use ccl_plan::verify::{Depth, Witness, cases, prove_cast};
use ccl_plan::{Algorithm, Collective, Plan, Rank};

/// Rank r sends its vector to all others, then folds what they sent, itself first.
const UNORDERED: &str = "
program all_reduce.unordered
collective all_reduce
chunks 1
scratch 1
lane 0 of 1
  for i in 1..n
    send pre              in -> to [r+i]                       chunk 0
  end
  copy pre                in -> scratch(0)                     chunk 0
  for i in 1..n
    recv_reduce_copy      from [r+i], scratch(0) -> scratch(0) chunk 0
  end
  copy post               scratch(0) -> out                    chunk 0
";

/// 1,000 programs broken in one small way: each is refused, with the step that shows it, or computes the right
/// numbers all the same.
#[test]
fn a_broken_program_is_refused_with_its_step() {
    let manual = include_str!("../../docs/manual/programs.md");
    let texts = ["all_reduce.hub", "all_reduce.ring"].map(|name| from_manual(manual, name));
    let texts = texts.into_iter().flat_map(|text| [3, 4, 5, 6].map(|n| (text.clone(), n)));
    let texts: Vec<(String, u32)> = texts.chain([(PAIRWISE.to_owned(), 4)]).collect();
    let (mut refused, mut equivalent) = (0, 0);
    for seed in 0.. {
        let (text, n) = &texts[seed as usize % texts.len()];
        let program = text.parse::<Program>().expect("the text is well formed");
        let damage = Damage::ALL[seed as usize / texts.len() % Damage::ALL.len()];
        let Some((broken, what)) = damaged(&program, damage, seed) else { continue };
        match UserAlgorithm::of_program(broken, *n, Depth::Each) {
            Err(refusal) => {
                assert!(refusal.instruction().is_some(), "seed {seed}: {damage}, {what}: {refusal}");
                refused += 1;
            }
            Ok(user) => {
                computes(user.plan())
                    .unwrap_or_else(|fault| panic!("seed {seed}: {damage}, {what}: {fault}"));
                equivalent += 1;
            }
        }
        if refused == 1000 {
            break;
        }
    }
    println!("{refused} refused, {equivalent} as good");
    assert!(equivalent < refused / 4);
}

/// Whether a plan computes the right numbers, by arithmetic that shares nothing with the verifier.
fn computes(plan: &Plan) -> Result<(), String> {
    for case in cases(plan, Depth::Each).into_iter().filter(|case| case.slots > 1) {
        let stage = Stage::new(plan, &case).map_err(|fault| fault.to_string())?;
        let walked = walk(&stage, Numbers::new(&stage)).map_err(|failure| failure.to_string())?;
        walked.domain.judge(&stage).map_err(|fault| fault.to_string())?;
    }
    Ok(())
}

/// The indented block of the manual that begins with the program's name.
fn from_manual(manual: &str, name: &str) -> String {
    let start = manual.find(&format!("    program {name}\n")).expect("the manual has the program");
    manual[start..]
        .lines()
        .take_while(|line| line.starts_with("    "))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn the_programs_of_the_manual_hold() {
    let manual = include_str!("../../docs/manual/programs.md");
    for n in 3..=24 {
        for name in ["all_reduce.hub", "all_reduce.ring"] {
            let user = UserAlgorithm::new(&from_manual(manual, name), n, Depth::Each);
            user.unwrap_or_else(|refusal| panic!("{name} n={n}: {refusal}"));
        }
    }
    let two = UserAlgorithm::new(&from_manual(manual, "all_reduce.hub"), 2, Depth::Each).unwrap_err();
    assert!(two.to_string().contains("instruction"), "{two}");
}

fn verdict(text: &str, n: u32) -> Result<(), Box<Witness>> {
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, n).expect("rings reduce");
    let program =
        text.parse::<Program>().expect("the text is well formed").check(n).expect("the program is safe");
    let cast = Cast { programs: vec![program], of_place: vec![0; n as usize] };
    let case = Case {
        n,
        count: 10,
        channels: 1,
        chunk_count: 4,
        grain_count: 1,
        slots: 2,
        root: Rank(0),
        buffers: Buffers::Apart,
        blocks: None,
    };
    prove_cast(&plan, cast, &case).map(|_| ())
}

/// Four ranks swap with their neighbour, then both with the pair across. Rank r takes pair r/2's
/// blocks as one Move.
const PAIRWISE: &str = "
program all_gather.pairwise
collective all_gather
chunks 1
scratch 0
lane 0 of 1
  copy_send             in -> out, to xor(r, 1)              recv_block r
  recv                  from xor(r, 1) -> out                recv_block xor(r, 1)
  send                  out -> to xor(r, 2)                  recv_block mul(div(r, 2), 2) span 2
  recv                  from xor(r, 2) -> out                recv_block mul(div(xor(r, 2), 2), 2) span 2
";

#[test]
fn a_span_is_several_blocks_in_one_move() {
    let plan = Plan::new(Collective::AllGather, Algorithm::Ring, 4).expect("rings gather");
    let judge = |text: &str| {
        let program = text.parse::<Program>().expect("the text is well formed");
        let program = program.check(4).expect("the program is safe");
        assert_eq!(program.widest(), 2);
        let cast = Cast { programs: vec![program], of_place: vec![0; 4] };
        // Blocks of one pass, of several, and of a part for each channel.
        for (count, chunk_count, channels) in [(3, 4, 1), (10, 4, 1), (10, 4, 3)] {
            let case = Case {
                n: 4,
                count,
                channels,
                chunk_count,
                grain_count: 1,
                slots: 1,
                root: Rank(0),
                buffers: Buffers::InPlace,
                blocks: None,
            };
            prove_cast(&plan, cast.clone(), &case)?;
        }
        Ok::<(), Box<Witness>>(())
    };
    judge(PAIRWISE).unwrap_or_else(|witness| panic!("{witness}"));
    let witness = judge(&PAIRWISE.replacen("span 2", "span 1", 1)).unwrap_err().to_string();
    assert!(witness.contains("expected a slot of 6 elements, found 3"), "{witness}");
}

/// One lane sends the input, the other folds it with what comes and overwrites it, in place.
const OVERTAKING: &str = "
program all_reduce.overtaking
collective all_reduce
chunks 1
scratch 0
lane 0 of 1
  send pre                   in -> to [r+1]                  chunk 0
lane 0 of 1
  recv_reduce_copy pre post  from [r-1], in -> out           chunk 0
";

#[test]
fn a_result_may_not_overtake_another_reader_of_what_it_overwrites() {
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 2).expect("rings reduce");
    let program = OVERTAKING.parse::<Program>().expect("the text is well formed");
    let cast = Cast { programs: vec![program.check(2).expect("the program is safe")], of_place: vec![0; 2] };
    let case = Case {
        n: 2,
        count: 3,
        channels: 1,
        chunk_count: 4,
        grain_count: 1,
        slots: 2,
        root: Rank(0),
        buffers: Buffers::InPlace,
        blocks: None,
    };
    let witness = prove_cast(&plan, cast, &case).unwrap_err().to_string();
    assert!(witness.contains("two lanes touch element 0"), "{witness}");
}

#[test]
fn ranks_must_agree_on_the_order_of_folds() {
    let witness = verdict(UNORDERED, 3).unwrap_err().to_string();
    assert!(witness.contains("rank 1 folds in another order"), "{witness}");
}

#[test]
fn a_witness_names_the_place_of_the_fault() {
    let missing_pre = UNORDERED.replace("send pre", "send");
    let witness = verdict(&missing_pre, 3).unwrap_err().to_string();
    let expected = [
        "n=3 count=10",
        "all_reduce.unordered fails",
        "rank 2, channel 0, lane 0, instruction 5, pass 0, i=1",
        "a contribution did not get its scalar exactly once",
        "in: recv_reduce_copy",
    ];
    for part in expected {
        assert!(witness.contains(part), "{witness}");
    }
}

#[test]
fn a_deadlock_names_who_waits_for_whom() {
    let inverted = "
program all_reduce.inverted
collective all_reduce
chunks 1
scratch 0
lane 0 of 1
  recv_reduce_copy pre post  from [r-1], in -> out   chunk 0
  send pre                   in -> to [r+1]          chunk 0
";
    let witness = verdict(inverted, 2).unwrap_err();
    assert!(witness.is_deadlock());
    let text = witness.to_string();
    assert!(text.contains("rank 0, channel 0, lane 0, instruction 0, pass 0"), "{text}");
    assert!(text.contains("waits for 1 to send on 1 -> 0"), "{text}");
}

#[test]
fn the_checker_refuses_what_could_leave_its_bounds() {
    let cases = [
        ("from [r+i], scratch(0)", "from r+i, scratch(0)", "a peer in 0..4"),
        ("scratch(0) -> scratch(0)", "scratch(0) -> scratch(1)", "a scratch cell in 0..1"),
        (
            "scratch(0) -> out                    chunk 0",
            "scratch(0) -> out send_block 0",
            "chunks of vectors",
        ),
        ("for i in 1..n", "for i in 1..100n", "bounds near n"),
        ("copy post               scratch(0) -> out", "copy post pre scratch(0) -> out", ""),
    ];
    for (from, to, expected) in cases {
        let text = UNORDERED.replacen(from, to, 1);
        let error = match text.parse::<Program>() {
            Err(error) => error.to_string(),
            Ok(program) => program.check(4).unwrap_err().to_string(),
        };
        assert!(error.contains(expected), "{error}");
    }
}
