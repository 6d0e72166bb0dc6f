//! Scenarios: those that are shipped run, and wrong ones say what to write instead.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::fs;
use std::path::Path;

use ccl_sim::{Error, Point, Scenario};

fn points(text: &str) -> Vec<Point> {
    Scenario::parse(text).unwrap().questions().iter().map(|question| question.answer().unwrap()).collect()
}

/// Those shipped, by name.
fn shipped() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())
        })
        .collect()
}

#[test]
fn shipped_scenarios_run() {
    let shipped = shipped();
    assert!(shipped.len() >= 7);
    for (name, text) in shipped {
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!scenario.title().is_empty(), "{name}");
        // The largest are swept in other tests.
        for question in scenario.questions() {
            let point = question.answer().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(point.time_us > 0.0 && point.time_us.is_finite(), "{name}: {point:?}");
        }
    }
}

#[test]
fn the_shipped_alps_predicts_what_was_measured() {
    let (_, text) = shipped().into_iter().find(|(name, _)| name == "alps").unwrap();
    let found = points(&text);
    let scenario = Scenario::parse(&text).unwrap();
    assert_eq!(found.len(), scenario.measured().len());
    for (found, measured) in found.iter().zip(scenario.measured()) {
        assert_eq!((found.ranks, found.bytes), (measured.ranks, measured.bytes));
        let off = (found.time_us / measured.time_us - 1.0).abs();
        assert!(off < if found.ranks <= 128 { 0.05 } else { 0.2 }, "{found:?} {measured:?}");
    }
}

const SMALL: &str = r#"
collective = "all_reduce"
algorithms = ["ring"]
ranks = [12]
bytes = ["64K"]
machine = "summit"
"#;

#[test]
fn engines_agree_where_nothing_is_shared() {
    let with =
        |engine: &str| points(&format!("engine = \"{engine}\"\nchunk_bytes = \"1M\"{SMALL}"))[0].time_us;
    let (sweep, fluid) = (with("sweep"), with("fluid"));
    assert!((sweep / fluid - 1.0).abs() < 1e-6, "{sweep} {fluid}");
    // The formula takes the longest way for all.
    assert!(with("formula") > sweep);
    let uniform = format!("{SMALL}\n[[fault]]\nkind = \"slow_rank\"\nrank = 3\nfactor = 2.0");
    assert!(points(&uniform)[0].time_us > 1.02 * points(SMALL)[0].time_us);
}

/// On links that are all alike, and of other nodes than the algorithm would make up for 16 ranks, but for one.
#[test]
fn formulas_go_by_the_nodes_of_the_machine() {
    for per_node in [1, 2, 4, 8] {
        let time_us = |engine: &str, algorithm: &str| {
            let text = format!(
                "engine = \"{engine}\"\ncollective = \"all_reduce\"\nalgorithms = [\"{algorithm}\"]\nranks = [16]\n\
                 bytes = [64]\nchunk_bytes = \"1M\"\n[machine]\nnodes = 1\ndevices_per_node = {per_node}\n\
                 nics_per_node = 1\nlocal = {{ latency_us = 2.0, gb_per_s = 10.0 }}\n\
                 network = {{ latency_us = 2.0, gb_per_s = 10.0 }}\n"
            );
            points(&text)[0].time_us
        };
        for algorithm in ["two_level", "two_level_halving"] {
            let [formula, swept] = ["formula", "sweep"].map(|engine| time_us(engine, algorithm));
            assert!((formula / swept - 1.0).abs() < 0.01, "{algorithm} of {per_node}: {formula} {swept}");
        }
    }
}

#[test]
fn sizes_are_bounded_however_they_are_written() {
    let most = 1_u64 << 50;
    let with = |bytes: &str| Scenario::parse(&SMALL.replace("bytes = [\"64K\"]", bytes));
    assert!(with(&format!("bytes = [{most}]")).is_ok());
    for bytes in [
        format!("bytes = [{}]", most + 1),
        format!("bytes = [{}]", i64::MAX),
        "bytes = [\"1048577G\"]".to_owned(),
        // Of all ranks together.
        format!("block_bytes = [{}]", most / 12 + 1),
        format!("chunk_bytes = {}\nbytes = [8]", most + 1),
    ] {
        assert!(with(&bytes).unwrap_err().to_string().contains("expected"), "{bytes}");
    }
}

/// What the error for a text says.
fn refusal(text: &str) -> String {
    let scenario = Scenario::parse(text);
    let outcome =
        scenario.and_then(|s| s.questions().iter().map(|q| q.answer()).collect::<Result<Vec<_>, _>>());
    match outcome {
        Err(Error::Usage { cause, advice }) => format!("{cause}; {advice}"),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn wrong_scenarios_say_what_to_write() {
    let changed = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        SMALL.replace(from, to)
    };
    let fabric = "{ kind = \"fat_tree\", nodes_per_pod = 0, oversubscription = 1.0 }";
    for (text, expected) in [
        (format!("colective = \"x\"{SMALL}"), "unknown field `colective`"),
        (changed("all_reduce", "all_reduse"), "expected a collective (all_reduce, reduce,"),
        (changed("\"ring\"", "\"bruck\""), "expected an algorithm for all_reduce (ring,"),
        (changed("[12]", "[13]"), "expected whole nodes of 6 ranks"),
        (changed("[12]", "[0]"), "found 0"),
        (changed("64K", "64Q"), "expected a size"),
        (changed("\"summit\"", "\"sumit\""), "expected a machine (nvlink, dgx-a100,"),
        (changed("\"summit\"", "{ like = \"summit\", nods = 3 }"), "unknown field `nods`"),
        (changed("\"summit\"", "{ nodes = 3 }"), "missing field"),
        (changed("\"summit\"", &format!("{{ like = \"summit\", fabric = {fabric} }}")), "found 0"),
        (
            changed("\"summit\"", "{ like = \"summit\", local = { latency_us = -1.0, gb_per_s = 1.0 } }"),
            "latencies from 0 on",
        ),
        (changed("bytes", "block_bytes = [8]\nbytes"), "found both"),
        (changed("ranks = [12]", "ranks = []"), "expected something to work out"),
        (format!("engine = \"nccl\"{}", changed("\"ring\"", "\"double_tree\"")), "ring, tree or pat"),
        (format!("engine = \"quick\"{SMALL}"), "expected a scenario"),
        (format!("{SMALL}\n[[fault]]\nkind = \"lost_nic\"\nnode = 2\nnic = 0"), "a fault in this machine"),
        (format!("root = 12{SMALL}"), "expected a root below 12"),
        (format!("slots = 1\nchunk_bytes = 4{SMALL}"), "slots"),
    ] {
        if expected == "slots" {
            let question = &Scenario::parse(&text).unwrap().questions()[0].clone();
            assert!(matches!(question.answer(), Err(Error::Deadlock { .. })), "{text}");
            continue;
        }
        let found = refusal(&text);
        assert!(found.contains(expected), "{text}: {found}");
    }
}

/// A node of devices whose switch copies, or does not.
fn by_switch(collective: &str, algorithm: &str, (multicast, ranks): (bool, u32), engine: &str) -> String {
    format!(
        r#"
        collective = "{collective}"
        algorithms = ["{algorithm}"]
        ranks = [{ranks}]
        bytes = ["64M"]
        engine = "{engine}"
        machine = {{ like = "dgx-h100", multicast = {multicast} }}
        "#
    )
}

/// Who sends more than anybody receives gains, by the factor by which it does, and nobody else.
#[test]
fn formulas_and_flows_agree_on_what_a_switch_copies() {
    for (collective, algorithm, gain) in [
        ("broadcast", "direct", 6.96),
        ("all_gather", "direct", 1.0),
        ("all_reduce", "one_shot", 1.0),
        ("all_reduce", "two_shot", 1.0),
        ("broadcast", "binomial", 1.0),
        ("all_reduce", "ring", 1.0),
    ] {
        for engine in ["formula", "fluid"] {
            let time =
                |multicast| points(&by_switch(collective, algorithm, (multicast, 8), engine))[0].time_us;
            let found = time(false) / time(true);
            assert!((found - gain).abs() < 0.01, "{collective}.{algorithm} by {engine}: {found}");
        }
    }
    // Of one sender, and of all at once, both engines say the same.
    for (collective, algorithm) in [("broadcast", "direct"), ("all_gather", "direct")] {
        let [formula, flows] = ["formula", "fluid"]
            .map(|engine| points(&by_switch(collective, algorithm, (true, 8), engine))[0].time_us);
        assert!((formula / flows - 1.0).abs() < 1e-5, "{collective}: {formula} {flows}");
    }
}

#[test]
fn what_a_switch_copies_is_not_swept() {
    let answer = |text: &str| Scenario::parse(text).unwrap().questions()[0].answer();
    let error = answer(&by_switch("broadcast", "direct", (true, 8), "sweep")).unwrap_err();
    assert!(error.to_string().contains("expected the engine fluid"), "{error}");
    // A chain is not copied, two ranks are not enough, and between nodes nothing is.
    for (algorithm, ranks) in [("ring", 8), ("direct", 2), ("direct", 16)] {
        let swept = |multicast| {
            answer(&by_switch("broadcast", algorithm, (multicast, ranks), "sweep")).unwrap().time_us
        };
        assert_eq!(swept(true), swept(false), "{algorithm} {ranks}");
        let flows = |multicast| {
            answer(&by_switch("broadcast", algorithm, (multicast, ranks), "fluid")).unwrap().time_us
        };
        assert_eq!(flows(true), flows(false), "{algorithm} {ranks}");
    }
}
