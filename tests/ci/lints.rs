//! The lints that every crate shares.

use toml::{Table, Value};

use crate::{tree, uphold};

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let members = manifest("Cargo.toml")["workspace"]["members"].as_array().cloned().unwrap_or_default();
    let mut violations = Vec::new();
    for member in members.iter().filter_map(Value::as_str) {
        let path = format!("{member}/Cargo.toml");
        let inherits = manifest(&path).get("lints").and_then(|lints| lints.get("workspace")?.as_bool());
        if inherits != Some(true) {
            violations.push(format!("{path}: no `[lints] workspace = true`"));
        }
    }
    uphold("Every crate takes the lints of the workspace.", &violations);
}

#[test]
fn the_workspace_has_the_lints_it_promises() {
    let lints = manifest("Cargo.toml")["workspace"]["lints"].clone();
    let mut violations = Vec::new();
    for (tool, lint, level) in PROMISED {
        let found = lints[tool].get(lint).and_then(Value::as_str);
        if found != Some(level) {
            violations.push(format!("{tool}::{lint}: expected {level:?}, found {found:?}"));
        }
    }
    uphold("The lints of the root Cargo.toml are as promised.", &violations);
}

fn manifest(path: &str) -> Table {
    let text = tree::text(path).unwrap_or_else(|| panic!("{path} is text"));
    text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// (tool, lint, level).
const PROMISED: [(&str, &str, &str); 6] = [
    ("rust", "missing_docs", "warn"),
    ("rust", "unsafe_op_in_unsafe_fn", "deny"),
    ("clippy", "undocumented_unsafe_blocks", "deny"),
    ("clippy", "unwrap_used", "warn"),
    ("clippy", "todo", "deny"),
    ("clippy", "unimplemented", "deny"),
];
