//! The network in Rust that authors copy, as they load it.

use ccl_tests::program;
use serde_json::Value;

#[test]
fn the_example_in_rust_keeps_every_clause_it_has_entries_for() {
    let mut check = program::command(120, program::ccl());
    check.args(["plugin", "check", "--json", "--patience", "30"]).arg(program::example_network());
    let report: Value = serde_json::from_slice(&program::succeeds(&mut check).stdout).unwrap();
    let clauses = report["clauses"].as_array().unwrap();
    assert_eq!((&report["kind"], clauses.len()), (&Value::from("net"), 33));
    for clause in clauses {
        let lacks =
            ["isend_from", "turn", "watch", "one_sided"].contains(&clause["clause"].as_str().unwrap());
        assert_eq!(clause["verdict"], if lacks { "skipped" } else { "ok" }, "{clause}");
    }
}
