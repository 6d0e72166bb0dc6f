//! Who depends on whom, and what each outside crate is for.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use crate::layout::{self, TESTS};
use crate::{tree, uphold};

#[test]
fn crates_depend_only_on_what_the_layout_allows() {
    let workspace = workspace();
    let ours: BTreeSet<&str> = workspace.packages.iter().map(|package| package.name.as_str()).collect();
    let mut violations = Vec::new();
    for package in workspace.packages.iter().filter(|package| package.name != TESTS) {
        let Some(row) = layout::row(&package.name) else {
            violations.push(format!("{} is not in the layout table", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let tested_with = dependency.kind == DependencyKind::Development
                && layout::TESTED_WITH.contains(&(row.name, name));
            if ours.contains(name) && !row.uses.contains(&name) && !tested_with {
                violations.push(format!(
                    "{} depends on {name}; it may depend on {:?} of ours",
                    package.name, row.uses
                ));
            }
        }
    }
    uphold("Dependencies between our crates follow the table in tests/ci/layout.rs.", &violations);
}

#[test]
fn crates_lie_where_the_layout_says() {
    let contributing = tree::text("CONTRIBUTING.md").expect("CONTRIBUTING.md is text");
    let mut violations = Vec::new();
    for package in &workspace().packages {
        let Some(row) = layout::row(&package.name) else { continue };
        let expected = tree::root().canonicalize().expect("the root exists").join(row.folder);
        let folder = package.manifest_path.parent().expect("a manifest lies in a folder");
        if folder.as_std_path() != expected {
            violations.push(format!("{}: expected in {}, found in {folder}", row.name, row.folder));
        }
        if !contributing.contains(&format!("| `{}` | `{}` |", row.folder, row.name)) {
            violations.push(format!("{}: no row for {} in CONTRIBUTING.md", row.name, row.folder));
        }
    }
    uphold("Crates lie where the layout says, and CONTRIBUTING.md shows it.", &violations);
}

#[test]
fn every_outside_dependency_is_explained() {
    let explained = explained();
    let used: BTreeSet<String> = workspace().packages.iter().flat_map(outside).collect();
    let mut violations = Vec::new();
    for name in &used {
        match explained.get(name) {
            None => violations.push(format!("{name} is a dependency and has no row")),
            Some(cells) if cells.iter().any(String::is_empty) => {
                violations.push(format!("{name}: a cell of its row is empty"));
            }
            Some(_) => {}
        }
    }
    violations.extend(
        explained.keys().filter(|name| !used.contains(*name)).map(|name| format!("{name} is no longer used")),
    );
    uphold(
        "docs/dependencies.md has one row for each direct outside dependency: | `crate` | why | instead of |",
        &violations,
    );
}

#[test]
fn declared_dependencies_are_used() {
    let sources = tree::files_ending("rs");
    let mut violations = Vec::new();
    for package in &workspace().packages {
        let folder = package.manifest_path.parent().expect("a manifest lies in a folder");
        let root = tree::root().canonicalize().expect("the root exists");
        let folder = folder.as_std_path().strip_prefix(root).expect("the crate is inside the workspace");
        let code: String =
            sources.iter().filter(|path| path.starts_with(folder)).filter_map(tree::text).collect();
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
            if !mentions(&code, &name) {
                violations.push(format!("{} declares {} and never names it", package.name, dependency.name));
            }
        }
    }
    uphold("A dependency that is declared is used; drop it from the crate's Cargo.toml.", &violations);
}

fn workspace() -> Metadata {
    MetadataCommand::new()
        .manifest_path(tree::root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata describes the workspace")
}

/// The direct dependencies of a package that come from outside the workspace.
fn outside(package: &Package) -> impl Iterator<Item = String> {
    package.dependencies.iter().filter(|dependency| dependency.path.is_none()).map(|d| d.name.clone())
}

/// The rows of docs/dependencies.md: crate to its other cells.
fn explained() -> BTreeMap<String, Vec<String>> {
    let text = tree::text("docs/dependencies.md").expect("docs/dependencies.md is text");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, rest)| {
        let rest = rest.trim().trim_end_matches('|');
        (name.to_owned(), rest.split('|').map(|cell| cell.trim().to_owned()).collect())
    })
    .collect()
}

/// Whether `code` has the identifier `name` in a path or a use.
fn mentions(code: &str, name: &str) -> bool {
    let pattern = format!(r"\b{}\b", regex::escape(name));
    regex::Regex::new(&pattern).expect("the pattern is a word").is_match(code)
}
