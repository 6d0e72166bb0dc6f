//! What people get wrong on the command line: every message says what was expected, what was found, and what to do.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::path::PathBuf;
use std::process::Command;

/// The command fails with this status, says all of `parts` in a few lines on standard error, and prints nothing else.
fn mistake(line: &str, environment: &[(&str, &str)], status: i32, parts: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl"));
    let output = command.args(line.split_whitespace()).envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{line}: {said}");
    assert!(output.stdout.is_empty(), "{line}: {:?}", String::from_utf8_lossy(&output.stdout));
    for part in parts {
        assert!(said.contains(part), "{line}: {part:?} is not in {said}");
    }
    assert!(said.lines().count() <= 8, "{line}: {said}");
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ccl-mistake-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn names_that_are_mistyped() {
    mistake(
        "perf alreduce -n 2",
        &[],
        2,
        &["expected one of all_reduce,", "pingpong, or all, found `alreduce`"],
    );
    mistake("perf all_reduce -d flaot", &[], 2, &["float", "found `flaot`"]);
    mistake("plan explain all_redcue", &[], 2, &["all_reduce, reduce", "found `all_redcue`"]);
    let explain =
        |options, parts: &[&str]| mistake(&format!("plan explain all_reduce {options}"), &[], 2, parts);
    explain("--nodes 4,x", &["as in 8, or 16x8 for 16 nodes", "found `x`"]);
    explain("--nodes 4,0", &["expected ranks of a node", "found `0`"]);
    explain("--nodes 4,2 -n 5", &["nodes of 5 ranks together, found 6"]);
    explain("--nodes 1048576x1048576", &["at most 1048576 ranks, found 1099511627776"]);
    explain("--nodes 2x4 --path memory", &["expected --path network between 2 nodes, found memory"]);
    mistake("plan show all_reduce -a rnig", &[], 2, &["one of ring", "found `rnig`"]);
    mistake("plan show gather -a ring", &[], 2, &["for gather (binomial, direct), found ring"]);
    mistake("tune send", &[], 2, &["send has one algorithm only"]);
    mistake("plam", &[], 2, &["unrecognized subcommand 'plam'", "'plan'"]);
}

#[test]
fn settings_that_cannot_be_meant() {
    let explain = |name, value, parts: &[&str]| mistake("plan explain broadcast", &[(name, value)], 2, parts);
    explain(
        "CCL_ALGO",
        "rnig",
        &["expected CCL_ALGO to name algorithms (ring", "found rnig", "ccl plan show"],
    );
    explain("CCL_ALGO", "brodcast:ring", &["expected CCL_ALGO to name collectives", "found brodcast"]);
    explain("CCL_ALGO", "broadcast:two_shot", &["for broadcast (ring,binomial,direct), found none"]);
    explain("CCL_TUNING_FILE", "/nonexistent/t.toml", &["/nonexistent/t.toml", "`ccl tune` writes one"]);
    explain("CCL_MAX_NCHANNELS", "many", &["CCL_MAX_NCHANNELS", "many"]);
}

#[test]
fn numbers_out_of_range() {
    mistake("perf all_reduce -b 8X", &[], 2, &["a size such as 8, 64K or 1.5M, found `8X`"]);
    mistake("perf broadcast -n 2 --root 2", &[], 2, &["expected a root below 2, found 2"]);
    mistake("perf --overlap -n 1", &[], 2, &["expected 2 ranks or more for --overlap, found 1", "give -n 2"]);
    mistake("plan verify --max-ranks 0", &[], 2, &["1..="]);
    mistake("tune -n 1", &[], 2, &["1 is not in 2..=256"]);
    mistake("tune --time 0", &[], 2, &["expected a time from"]);
}

#[test]
fn files_that_are_missing_or_something_else() {
    mistake("sim nosuch.toml", &[], 3, &["nosuch.toml", "docs/scenarios"]);
    mistake("topo --file nosuch.xml", &[], 3, &["nosuch.xml", "`ccl topo --xml` writes such a file"]);
    mistake("plan verify nosuch.txt", &[], 2, &["nosuch.txt", "chapter on programs"]);
    mistake("sim --measured nosuch.jsonl", &[], 3, &["nosuch.jsonl", "`ccl tune --json` writes such a file"]);
    let (xml, toml, text) = (
        file("a.xml", "<system"),
        file("a.toml", "ranks = [2"),
        file("a.txt", "program x\ncollective gossip\n"),
    );
    let with = |command: &str, path: &PathBuf| format!("{command} {}", path.display());
    mistake(&with("topo --file", &xml), &[], 2, &["expected XML", "correct the file"]);
    mistake(&with("sim", &toml), &[], 2, &["expected a scenario", "line 1", "chapter on the simulator"]);
    mistake(&with("plan verify", &text), &[], 2, &["line 2", "gossip"]);
    let cell = "{\"algorithm\":\"ring\",\"bytes\":8,\"carried\":\"slots\",\"chunk_bytes\":4,\"collective\":\"all_reduce\",\
                \"cores\":2,\"time_us\":1.0,\"ranks\":2,\"reach\":\"memory\"}\n";
    let (cut, bush, one) = (
        file("a.jsonl", &format!("{cell}{{\"ranks\": 2")),
        file("b.jsonl", &cell.replace("ring", "bush")),
        file("c.jsonl", cell),
    );
    let written = "`ccl tune --json";
    mistake(&with("sim --measured", &cut), &[], 2, &["line 2 of", "a.jsonl", "EOF", written]);
    mistake(&with("sim --measured", &bush), &[], 2, &["expected an algorithm, found bush", written]);
    mistake(&with("sim --measured", &one), &[], 2, &["measurements of two sizes or more", written]);
    mistake("sim docs/a.toml --check 5", &[], 2, &["--check", "cannot be used with"]);
    let tuning = file("b.toml", "[[rule]]\ncollective = \"broadcast\"\nalgorithm = \"two_shot\"\n");
    let named = tuning.to_str().unwrap();
    let parts =
        [named, "an algorithm of broadcast (ring, binomial, direct), found two_shot", "chapter on tuning"];
    mistake("plan explain broadcast", &[("CCL_TUNING_FILE", named)], 2, &parts);
    for path in [xml, toml, text, tuning, cut, bush, one] {
        std::fs::remove_file(path).unwrap();
    }
}
