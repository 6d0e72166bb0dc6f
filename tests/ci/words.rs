//! Words that do not belong in a finished repository.

use std::path::Path;

use regex::Regex;

use crate::{tree, uphold};

#[test]
fn no_file_has_unfinished_places_or_paths_of_one_machine() {
    let rules: Vec<(Regex, &str)> = RULES
        .iter()
        .map(|(pattern, advice)| (Regex::new(pattern).expect("the rules are expressions"), *advice))
        .collect();
    let mut violations = Vec::new();
    for path in tree::files() {
        if path == Path::new(THIS_FILE) || path.ends_with("Cargo.lock") {
            continue;
        }
        let Some(text) = tree::text(&path) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            let broken = rules.iter().filter(|(rule, _)| rule.is_match(line));
            violations.extend(
                broken.map(|(_, advice)| format!("{}:{number}: {advice}: {}", path.display(), line.trim())),
            );
        }
    }
    uphold("Nothing in the repository is unfinished or speaks of one machine.", &violations);
}

const THIS_FILE: &str = "tests/ci/words.rs";

/// (expression, what to do).
const RULES: [(&str, &str); 5] = [
    (r"\b(todo|unimplemented|dbg)!", "finish it"),
    (r"\b(TODO|FIXME|XXX|HACK)\b", "finish it, or write an issue"),
    (r#"panic!\("not (yet )?(implemented|supported)"#, "return an error that says so"),
    (r"#\[ignore\]", "give the reason: #[ignore = \"…\"]"),
    (r"(^|[\s`'=(:<\x22])/(root|home|work|Users)/", "a path of one machine"),
];
