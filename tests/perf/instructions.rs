//! Instructions of an 8-byte call, against what it may take. Counts do not depend on how busy or fast
//! the machine is, so they fail for a reason.

use std::path::Path;
use std::thread;

use ccl_tests::{program, skip};

/// Most instructions per call: about a tenth more than was counted when the row was last changed.
const MOST: [(&str, u64); 8] = [
    ("all_reduce", 820),
    ("all_gather", 840),
    ("reduce_scatter", 860),
    ("broadcast", 640),
    ("all_to_all", 935),
    ("send_recv", 590),
    ("exchange", 1460),
    ("barrier", 680),
];

#[test]
fn small_calls_take_few_instructions() {
    if !program::installed("valgrind") {
        return skip("small_calls_take_few_instructions", "valgrind is not installed");
    }
    // Built for release: what it takes in other profiles nobody uses.
    let ccl = program::released_ccl();
    let mut over = Vec::new();
    for pair in MOST.chunks(AT_ONCE) {
        let counted: Vec<u64> = thread::scope(|scope| {
            let each = |&(operation, _): &(&'static str, u64)| {
                let ccl = &ccl;
                scope.spawn(move || {
                    let few = counted(ccl, operation, CALLS);
                    (counted(ccl, operation, 2 * CALLS) - few) / CALLS
                })
            };
            let running: Vec<_> = pair.iter().map(each).collect();
            running.into_iter().map(|count| count.join().expect("callgrind counts")).collect()
        });
        for (&(operation, most), each) in pair.iter().zip(counted) {
            println!("{operation}: {each} instructions, at most {most}");
            assert!(each > 50, "{operation}: {each} instructions are no call");
            if each > most {
                over.push(format!("{operation}: {each} instructions, expected at most {most}"));
            }
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// Instructions of all of `calls` calls.
fn counted(ccl: &Path, operation: &str, calls: u64) -> u64 {
    let mut valgrind = program::command(LIMIT_S, "valgrind");
    valgrind.args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*small_call*"]);
    valgrind.args(["--callgrind-out-file=/dev/null"]).arg(ccl);
    valgrind.args(["counted", operation, &calls.to_string()]);
    let text = program::both(&program::succeeds(&mut valgrind));
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.unwrap_or_else(|| panic!("callgrind counted nothing:\n{text}"));
    number.trim().parse().expect("callgrind prints a number")
}

/// Enough that a call that goes another way now and then does not show.
const CALLS: u64 = 40;
/// How many are counted beside each other: more than there are cores, and a peer may not have done its part in time.
const AT_ONCE: usize = 2;
const LIMIT_S: u64 = 120;
