//! `ccl plugin`: what it says of plugins that keep their contract, and of those that break one clause of it.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

mod kit;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use self::kit::{Breach, all_named, compile, json, verdict};

fn planted(name: &str, flags: &[&str]) -> String {
    compile("core/tools/tests/plugins/planted.c", name, flags)
}

fn ccl(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    kit::ccl(&[&["plugin"], arguments].concat(), environment)
}

/// Every clause is kept, but for those that the plugin has no entries for.
fn keeps_all(plugin: &str, lacks: &[&str]) {
    keeps_all_of(plugin, ("net", 33), lacks);
}

/// As [`keeps_all`] for a plugin of a kind with so many clauses.
fn keeps_all_of(plugin: &str, (kind, clauses): (&str, usize), lacks: &[&str]) {
    let output = ccl(&["check", plugin, "--json", "--patience", "30"], &[]);
    let report = json(&output);
    for clause in report["clauses"].as_array().unwrap() {
        let name = clause["clause"].as_str().unwrap();
        let expected = if lacks.contains(&name) { "skipped" } else { "ok" };
        assert_eq!(clause["verdict"], expected, "{plugin}: {clause}");
    }
    assert_eq!((report["clauses"].as_array().unwrap().len(), &report["kind"]), (clauses, &Value::from(kind)));
    assert_eq!((output.status.code(), &report["ok"]), (Some(0), &Value::Bool(true)));
}

#[test]
fn the_socket_network_keeps_every_clause() {
    keeps_all("socket", &["one_sided"]);
}

#[test]
fn the_example_keeps_every_clause_it_has_entries_for() {
    let lacks = ["test_many", "isend_more", "isend_from", "turn", "watch", "one_sided"];
    keeps_all(&compile("plugins/examples/loopback_net.c", "kit_loopback", &[]), &lacks);
}

#[test]
fn without_its_breaches_the_planted_network_keeps_every_clause() {
    keeps_all(&planted("kit_sound", &[]), &[]);
}

#[test]
fn a_network_around_another_keeps_every_clause_without_faults() {
    keeps_all("fault:socket?delay_us=100&reorder=1", &["isend_from", "turn", "watch", "one_sided"]);
}

#[test]
fn networks_made_for_nccl_keep_what_their_contract_has() {
    let keeps = |version: &u32| {
        let flags = [format!("-DNET_VERSION={version}"), "-fvisibility=hidden".to_owned()];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let name = format!("kit_toy_net_{version}");
        let toy = compile("plugins/nccl/tests/plugins/toy_net.c", &name, &flags);
        keeps_all(&toy, &["isend_from", "turn", "watch", "one_sided"]);
    };
    std::thread::scope(|scope| {
        for versions in [&[6, 7, 8, 9][..], &[10, 11, 12]] {
            scope.spawn(|| versions.iter().for_each(&keeps));
        }
    });
}

#[test]
fn every_breach_is_named_by_its_clause() {
    all_named(&planted("kit_breaches", &[]), 4, BREACHES);
}

#[test]
fn the_example_tuner_keeps_every_clause() {
    keeps_all_of(&compile("plugins/examples/rules_tuner.c", "kit_rules", &[]), ("tuner", 13), &[]);
    keeps_all_of(&planted_tuner("kit_sound_tuner", &[]), ("tuner", 13), &[]);
}

#[test]
fn tuners_made_for_nccl_keep_every_clause_that_concerns_them() {
    for version in 2..=6 {
        let (name, flag) = (format!("kit_toy_tuner_{version}"), format!("-DTUNER_VERSION={version}"));
        let toy = compile("plugins/nccl/tests/plugins/toy_tuner.c", &name, &[&flag]);
        keeps_all_of(&toy, ("tuner", 13), &["outside"]);
    }
}

#[test]
fn every_breach_of_a_tuner_is_named_by_its_clause() {
    all_named(&planted_tuner("kit_tuner_breaches", &[]), 4, TUNER_BREACHES);
    for (name, flag, words) in [
        ("kit_tuner_version", "-DRULES_VERSION=3", "version 1, found version 3"),
        ("kit_tuner_entry", "-DPLANTED_ADVISE=0", "expected the entry advise"),
    ] {
        let output = ccl(&["check", &planted_tuner(name, &[flag]), "--json"], &[]);
        let report = json(&output);
        let (verdict_of_table, found) = verdict(&report, "table");
        assert!(verdict_of_table == "breach" && found.contains(words), "{found}");
        assert_eq!(verdict(&report, "leaks").0, "skipped");
    }
}

fn planted_tuner(name: &str, flags: &[&str]) -> String {
    compile("core/tools/tests/plugins/planted_tuner.c", name, flags)
}

#[test]
fn a_table_that_cannot_be_used_is_a_breach_and_the_rest_is_skipped() {
    for (name, flag, words) in [
        ("kit_size", "-DPLANTED_SIZE=16", "found size 16"),
        ("kit_name", "-DPLANTED_NAME=\"\"", "expected a name of 1 to 63 bytes"),
        ("kit_entry", "-DPLANTED_IRECV=0", "expected the entry irecv"),
    ] {
        let plugin = planted(name, &[flag]);
        let output = ccl(&["check", &plugin, "--json", "--clause", "table", "--clause", "order"], &[]);
        let report = json(&output);
        let (verdict_of_table, found) = verdict(&report, "table");
        assert!(verdict_of_table == "breach" && found.contains(words), "{found}");
        assert_eq!(verdict(&report, "order").0, "skipped");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn faults_on_purpose_are_named_by_the_clauses_they_break() {
    for (faults, clause, words) in [
        ("corrupt_bit=3", "sizes", "of a message of"),
        ("drop_after=5", "order", "dropped on purpose after 5 messages"),
        ("error_from_test=2", "order", "the test of request 2 failed on purpose"),
    ] {
        let output = ccl(&["check", &format!("fault:socket?{faults}"), "--json", "--clause", clause], &[]);
        let (verdict, found) = verdict(&json(&output), clause);
        assert!(verdict == "breach" && found.contains(words), "{faults}: {verdict} {found}");
    }
}

/// Three ranks that sum over sockets with this fault: status and standard error of all of them.
fn ranks_with(fault: &str) -> (Option<i32>, String) {
    let me = env!("CARGO_BIN_EXE_ccl");
    let perf = ["perf", "all_reduce", "-b", "64K", "-e", "64K", "--iters", "5", "-w", "1"];
    // None is ended because another failed; `timeout` ends all if they hang.
    let mut command = Command::new("timeout");
    command.args(["120", me, "run", "-n", "3", "--grace", "60", "--", me]).args(perf);
    command.env("CCL_SHM_DISABLE", "1").env("CCL_CHECKSUM", "1");
    let output = command.env("CCL_NET_PLUGIN", format!("fault:socket?{fault}")).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn faults_that_a_network_may_have_are_borne() {
    for fault in ["delay_us=200", "reorder=1&seed=3"] {
        let (status, said) = ranks_with(fault);
        assert_eq!(status, Some(0), "{fault}: {said}");
    }
}

#[test]
fn faults_that_a_network_may_not_have_are_errors_with_names_on_all_ranks() {
    for (fault, words) in [
        ("drop_after=20", "the connection was dropped on purpose after 20 messages"),
        ("error_from_test=15", "failed on purpose (error_from_test)"),
        ("corrupt_bit=9", "to arrive as it was sent"),
    ] {
        let (status, said) = ranks_with(fault);
        assert_eq!(status, Some(3), "{fault}: {said}");
        for rank in 0..3 {
            let begins = format!("ccl: rank {rank}: ");
            let line = said.lines().find(|line| line.starts_with(&begins)).unwrap_or_default();
            let names_another = line.contains(" rank ") || line.contains(" peer ");
            assert!(line.contains(words) && names_another, "{fault}, rank {rank}: {said}");
        }
    }
}

#[test]
fn faults_that_cannot_be_read_are_named() {
    let output = ccl(&["list"], &[("CCL_NET_PLUGIN", "fault:socket?delay=3")]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("found \"delay\"") && said.contains("delay_us, drop_after"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn people_read_a_table_and_programs_a_status() {
    let output = ccl(&["check", "socket", "--clause", "order", "--here"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("200 messages of one tag") && text.contains("1 clauses kept, 0 broken"), "{text}");
    let output = ccl(&["check", "--clauses"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("No entry waits for the peer."), "{text}");
    let output = ccl(&["check", "socket", "--clause", "oder"], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("expected one of table,") && said.contains("found `oder`"), "{said}");
}

#[test]
fn the_kind_of_a_file_is_found_by_its_tables() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str, symbols: &str| {
        let source = folder.join(format!("{name}.c"));
        std::fs::write(&source, symbols).unwrap();
        compile(source.to_str().unwrap(), name, &[])
    };
    let check = |file: &str, arguments: &[&str]| {
        let output = ccl(&[&["check", file, "--json", "--clause", "table"], arguments].concat(), &[]);
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    // A table that nobody reads before its kind is known: then it is found to be too short.
    let one = file("kit_kind_one", "const unsigned ncclNetPlugin_v12[64] = {0};");
    let (status, said) = check(&one, &[]);
    assert!(status == Some(1) && said.contains("\"kind\":\"net\""), "{said}");
    let two = file("kit_kind_two", "const unsigned cclNet_v1[64] = {16, 1}, ncclTunerPlugin_v3[8] = {0};");
    let (status, said) = check(&two, &[]);
    assert!(status == Some(2) && said.contains("is net tuner") && said.contains("--kind"), "{said}");
    let (status, said) = check(&two, &["--kind", "net"]);
    assert!(status == Some(1) && said.contains("found size 16"), "{said}");
    let (status, said) = check(&two, &["--kind", "nett"]);
    assert!(status == Some(2) && said.contains("possible values: net"), "{said}");
    let crashing =
        file("kit_kind_crash", "__attribute__((constructor)) void start(void) { __builtin_trap(); }");
    let (status, said) = check(&crashing, &[]);
    assert!(status == Some(1) && said.contains("crashes: "), "{said}");
}

#[test]
fn what_would_be_loaded_is_listed_with_the_reasons() {
    let good = compile("plugins/examples/loopback_net.c", "kit_listed", &[]);
    let old = compile("plugins/examples/loopback_net.c", "kit_listed_old", &["-DLOOPBACK_VERSION=7"]);
    let list = |plugins: &str| {
        let output = ccl(&["list", "--json"], &[("CCL_NET_PLUGIN", plugins)]);
        (output.status.code(), json(&output)["plugins"].as_array().unwrap().clone())
    };
    let is = |row: &Value, file: &str, verdict: &str, why: &str| {
        let holds = |key: &str, part: &str| row[key].as_str().unwrap().contains(part);
        assert!(
            row["kind"] == "net" && holds("file", file) && row["verdict"] == verdict && holds("why", why),
            "{row}"
        );
    };
    let (status, rows) = list(&format!("{old},{good}"));
    assert_eq!((status, rows.len()), (Some(0), 3));
    is(&rows[0], &old, "refused", "expected a table of version 1, found version 7");
    is(&rows[1], &good, "chosen", "network loopback-c");
    assert_eq!(rows[1]["offers"], serde_json::json!(["cclNet_v1"]));
    is(&rows[2], "linked in", "unused", "loopback-c comes before it");
    let (status, rows) = list(&old);
    assert_eq!(status, Some(1));
    is(&rows[2], "-", "problem", "found none");
    let (status, rows) = list("socket");
    assert_eq!((status, rows.len()), (Some(0), 1));
    is(&rows[0], "linked in", "chosen", "network socket");
    let (_, rows) = list("fault:socket?drop_after=9");
    is(&rows[0], "linked in", "chosen", "with faults on purpose: drop_after=9");
    let output = ccl(&["list"], &[("CCL_NET_PLUGIN", &good)]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("chosen"));
}

#[test]
fn tuners_are_listed_where_one_is_asked_for_or_found() {
    let rules = compile("plugins/examples/rules_tuner.c", "kit_listed_tuner", &[]);
    let tuners = |environment: &[(&str, &str)]| {
        let output = ccl(&["list", "--json"], &[environment, &[("CCL_NET_PLUGIN", "socket")]].concat());
        let rows = json(&output)["plugins"].as_array().unwrap().clone();
        rows.into_iter().filter(|row| row["kind"] == "tuner").collect::<Vec<_>>()
    };
    let rows = tuners(&[("CCL_TUNER_PLUGIN", &format!("/no/such/tuner.so,{rules}"))]);
    let found: Vec<_> =
        rows.iter().map(|row| (row["verdict"].as_str().unwrap(), row["offers"].to_string())).collect();
    assert_eq!(found, [("refused", "[]".to_owned()), ("chosen", "[\"cclTuner_v1\"]".to_owned())]);
    assert!(tuners(&[]).is_empty() && tuners(&[("CCL_TUNER_PLUGIN", "none")]).is_empty());
}

/// The same for tuners.
const TUNER_BREACHES: &[Breach] = &[
    ("second_init", "contexts", "init: expected success, found out of resources"),
    ("one_for_all", "contexts", "expected a context to answer as before when there is another"),
    ("finalize_hangs", "contexts", "blocks: expected finalize"),
    ("fails_on_gather", "collectives", "no idea of gather"),
    ("not_a_number", "collectives", "expected costs that are numbers"),
    ("fails_on_zero", "sizes", "for all_reduce of 0 bytes"),
    ("crashes_on_names", "names", "crashes: "),
    ("knows_everything", "names", "expected no opinion on a collective named"),
    ("six_at_most", "counts", "advise: expected success, found"),
    ("throws_dice", "same", "expected the same answer"),
    ("past_the_end", "outside", "expected nothing written around a candidate"),
    ("renames", "outside", "size, algorithm and protocol"),
    ("shuffles", "outside", "the list of candidates as it was"),
    ("slow", "in_time", "expected all questions of a communicator answered within"),
    ("two_lines", "log", "without line ends"),
    ("leaks_descriptor", "leaks", "no descriptors left"),
    ("leaks_thread", "leaks", "no threads left"),
];

/// What is planted, the clause that must name it, and words that it must say.
const BREACHES: &[Breach] = &[
    ("second_init", "contexts", "in init: one context is enough"),
    ("finalize_fails", "contexts", "in finalize: it will not end"),
    ("finalize_hangs", "contexts", "blocks: expected finalize"),
    ("properties_overrun", "properties", "bytes of the struct"),
    ("few_requests", "properties", "max_requests of 8 or more"),
    ("device_beyond", "last_error", "expected an error for device 1"),
    ("no_words", "last_error", "without words"),
    ("other_code", "last_error", "spoke of timed out"),
    ("shared_words", "last_error", "on a thread that had none"),
    ("last_error_overruns", "last_error", "bytes of the struct"),
    ("short_handle", "handle", "the last 120 as they were"),
    ("long_handle", "handle", "found byte 128"),
    ("accept_hangs", "connect", "blocks: expected accept"),
    ("wrong_listener", "admission", "found it at another"),
    ("no_refusal", "refusal", "a listener that closed"),
    ("slow_accept", "nonblocking", "accept with nobody there"),
    ("connect_waits", "nonblocking", "expected connect to return at once"),
    ("isend_waits", "nonblocking", "expected isend"),
    ("irecv_waits", "nonblocking", "expected irecv"),
    ("fails_on_zero", "sizes", "in isend: a message of 0 bytes"),
    ("drops_last_byte", "sizes", "expected 2 bytes received"),
    ("flips_a_byte", "sizes", "byte 511 of a message of 1023"),
    ("scribbles", "sizes", "byte 1022 of a message of 1023"),
    ("wrong_size", "sizes", "expected 0 bytes received"),
    ("past_the_end", "sizes", "bytes behind a buffer"),
    ("bytes_come_later", "sizes", "found 0x00"),
    ("never_done", "sizes", "found it never came"),
    ("crashes", "sizes", "crashes: "),
    ("done_unasked", "pending", "when nothing was sent, found it done"),
    ("completes_twice", "pending", "went to another, found it done"),
    ("reorders", "order", "with tag 5"),
    ("ignores_tags", "tags", "of a message of 500"),
    ("max_recvs_lied", "groups", "expected at most 1 buffers, found 2"),
    ("half_a_group", "groups", "with a message missing, found it done"),
    ("sizes_backwards", "groups", "found 102 reported"),
    ("wants_room", "unexpected", "no receive is posted"),
    ("many_requests", "in_flight", "64 receives in flight"),
    ("not_now_posts", "in_flight", "messages"),
    ("oldest_first", "out_of_order", "tested before older ones"),
    ("register_once", "registration", "five are enough"),
    ("any_kind", "registration", "memory of kind 2 refused"),
    ("too_long_cut", "too_long", "[1000] bytes received"),
    ("too_long_unsaid", "too_long", "expected both sizes"),
    ("silent_death", "peer_gone", "after the sender closed"),
    ("no_peer", "peer_gone", "the peer's address"),
    ("done_early", "delivered", "the sending end is closed"),
    ("close_waits_for_pending", "close_pending", "blocks: expected close_recv"),
    ("close_fails_pending", "close_pending", "receives are pending"),
    ("writes_after_close", "close_pending", "no buffer touched after close_recv"),
    ("abort_ignored", "abort", "in test_recv after abort"),
    ("abort_for_all", "abort", "everything was aborted"),
    ("one_thread", "threads", "not on the thread of init"),
    ("fifty_contexts", "cycles", "fifty contexts are enough"),
    ("leaks_descriptor", "leaks", "no descriptors left"),
    ("listen_leaks_thread", "leaks", "no threads left"),
    ("batch_sizes", "test_many", "reported by test_recvs"),
    ("loses_held", "isend_more", "a message that was held"),
    ("sends_unfilled", "isend_from", "of a message of 300"),
    ("writes_and_declines", "isend_from", "nothing written"),
    ("turn_leads_nowhere", "turn", "found it never came"),
    ("turn_closes_both", "turn", "the sending end is closed"),
    ("watch_is_silent", "watch", "found none ready for 5 of 5"),
    ("put_anywhere", "one_sided", "past the memory's end"),
    ("gets_others", "one_sided", "what a get reads"),
    ("signal_sets", "one_sided", "the sum of two signals"),
];
