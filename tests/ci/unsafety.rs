//! Where `unsafe` may stand.

use std::path::Path;

use crate::layout;
use crate::{rust, tree, uphold};

#[test]
fn unsafe_stands_only_where_the_layout_allows() {
    let mut violations = Vec::new();
    for file in rust::files() {
        let Some(row) = layout::owner(&file.path) else { continue };
        let folder = Path::new(row.folder);
        let inside = file.path.strip_prefix(folder).expect("the owner's folder holds the file");
        let inside = inside.to_str().expect("paths of the repository are text");
        if row.unsafe_in.iter().any(|allowed| inside.starts_with(allowed)) {
            continue;
        }
        let lines: Vec<String> = file.unsafe_lines.iter().map(usize::to_string).collect();
        if !lines.is_empty() {
            violations.push(format!("{}: line {}", file.path.display(), lines.join(", ")));
        }
    }
    uphold("`unsafe` stands only in the places that tests/ci/layout.rs lists.", &violations);
}

#[test]
fn pure_crates_forbid_unsafe() {
    let mut violations = Vec::new();
    for row in layout::CRATES.iter().filter(|row| row.forbids_unsafe) {
        let path = Path::new(row.folder).join("src/lib.rs");
        let exists = tree::root().join(&path).exists();
        if exists && !tree::text(&path).is_some_and(|text| text.contains("#![forbid(unsafe_code)]")) {
            violations.push(format!("{}: no #![forbid(unsafe_code)]", path.display()));
        }
    }
    uphold("Crates that only compute forbid `unsafe`.", &violations);
}
