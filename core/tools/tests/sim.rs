//! `ccl sim`.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccl")).arg("sim").args(args).output().unwrap()
}

fn shipped(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios");
    folder.join(name).to_str().unwrap().to_owned()
}

/// A file of this test's own.
fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn a_scenario_is_a_table_lines_of_json_and_a_plot() {
    let scenario = shipped("dgx-a100.toml");
    let plot = own("sim.svg");
    let output = sim(&[&scenario, "--plot", plot.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.starts_with("# All-reduce of 8 bytes") && table.contains("33.28") && table.contains("measured")
    );
    // Nothing but the table: no progress in a pipe.
    assert!(output.stderr.is_empty());
    let drawing = std::fs::read_to_string(plot).unwrap();
    assert!(drawing.contains("<svg") && drawing.contains("measured"));
    let lines = String::from_utf8(sim(&[&scenario, "--json"]).stdout).unwrap();
    let values: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(values.len(), 14);
    assert_eq!((&values[0]["ranks"], &values[0]["measured"]), (&2.into(), &false.into()));
    assert!((values[0]["time_us"].as_f64().unwrap() - 9.52).abs() < 0.01);
    assert_eq!((&values[13]["ranks"], &values[13]["measured"]), (&8.into(), &true.into()));
}

#[test]
fn machines_are_listed_and_help_has_examples() {
    let machines = String::from_utf8(sim(&["--machines"]).stdout).unwrap();
    assert!(machines.contains("summit") && machines.contains("4096"), "{machines}");
    let help = String::from_utf8(sim(&["--help"]).stdout).unwrap();
    assert!(help.contains("Examples:") && help.contains("machine = \"summit\""), "{help}");
}

#[test]
fn wrong_scenarios_are_usage_errors() {
    let path = own("wrong.toml");
    std::fs::write(&path, "ranks = [4]\nrank = 3\n").unwrap();
    let output = sim(&[path.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("unknown field `rank`") && said.contains("wrong.toml"), "{said}");
    assert_eq!(sim(&[]).status.code(), Some(2));
    assert_eq!(sim(&["no-such-file.toml"]).status.code(), Some(3));
}
