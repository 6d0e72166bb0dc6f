//! The documents: decision records, links, the index.

use std::path::{Path, PathBuf};

use ccl_plan::{Algorithm, Collective, Place, Plan};
use regex::Regex;

use crate::{tree, uphold};

#[test]
fn decision_records_are_complete() {
    let mut violations = Vec::new();
    for path in records() {
        let text = tree::text(&path).expect("a record is text");
        let number = &name(&path)[..4];
        if !text.starts_with(&format!("# {number}: ")) {
            violations.push(format!("{}: expected to begin with \"# {number}: title\"", path.display()));
        }
        for section in ["Context", "Decision", "Consequences", "Numbers"] {
            if !text.lines().any(|line| line == format!("## {section}")) {
                violations.push(format!("{}: no section \"## {section}\"", path.display()));
            }
        }
    }
    uphold("A decision record has context, decision, consequences and numbers.", &violations);
}

#[test]
fn decision_records_are_numbered_without_gaps() {
    let mut violations = Vec::new();
    for (expected, path) in (1..).zip(records()) {
        if !name(&path).starts_with(&format!("{expected:04}-")) {
            violations.push(format!("{}: expected number {expected:04}", path.display()));
        }
    }
    uphold("Decision records are docs/adr/NNNN-title.md, from 0001, without gaps.", &violations);
}

#[test]
fn links_lead_somewhere() {
    let link = Regex::new(r"\]\(([^)#\s]+)(#[^)]*)?\)").expect("the expression is well formed");
    let mut violations = Vec::new();
    for path in tree::files_ending("md") {
        let text = tree::text(&path).expect("markdown is text");
        let folder = tree::root().join(path.parent().unwrap_or(Path::new("")));
        for target in link.captures_iter(&text).filter_map(|found| Some(found.get(1)?.as_str())) {
            if !target.contains("://") && !folder.join(target).exists() {
                violations.push(format!("{}: nothing at {target}", path.display()));
            }
        }
    }
    uphold("A link from one document to another leads somewhere.", &violations);
}

#[test]
fn the_index_names_every_document() {
    let index = tree::text("docs/README.md").expect("docs/README.md is text");
    let documents = tree::files_ending("md").into_iter().filter_map(|path| {
        let inside = path.strip_prefix("docs").ok()?.to_str()?.to_owned();
        (inside != "README.md").then_some(inside)
    });
    let violations: Vec<String> = documents
        .filter(|path| !index.contains(&format!("]({path})")))
        .map(|p| format!("docs/{p}"))
        .collect();
    uphold("docs/README.md links to every document under docs.", &violations);
}

#[test]
fn the_manual_shows_a_program_as_it_is_printed() {
    let manual = tree::text("docs/manual/programs.md").expect("the manual is text");
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 8).expect("rings carry out all-reduce");
    let text = plan.program(Place(3), Place(0)).to_string();
    let missing = text.lines().filter(|line| !manual.contains(&format!("    {line}\n")));
    let violations: Vec<String> = missing.map(str::to_owned).collect();
    uphold("docs/manual/programs.md shows the ring all-reduce line by line.", &violations);
}

fn records() -> Vec<PathBuf> {
    tree::files_ending("md").into_iter().filter(|path| path.starts_with("docs/adr")).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a record's name is text")
}
