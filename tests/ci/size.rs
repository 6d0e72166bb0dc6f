//! The size budget of functions, files and crates.

use std::collections::BTreeMap;
use std::path::Path;

use crate::layout;
use crate::rust::{self, Function, RustFile};
use crate::uphold;

#[test]
fn functions_stay_within_their_ceiling() {
    let violations: Vec<String> = functions()
        .filter_map(|(file, function)| {
            Some(format!("{}: {}", at(file, function), objection(file, function)?))
        })
        .collect();
    print_longest();
    uphold("A function has at most 80 lines, or 120 with a reason, or more if it is one match.", &violations);
}

#[test]
fn most_functions_are_short() {
    let mut lines: Vec<usize> =
        functions().filter(|(_, function)| !function.is_test).map(|(_, function)| function.lines).collect();
    lines.sort_unstable();
    let mut violations = Vec::new();
    for (percentile, ceiling) in PERCENTILES {
        let found = lines[(lines.len() - 1) * percentile / 100];
        println!(
            "function length, {percentile}th percentile of {}: {found} (at most {ceiling})",
            lines.len()
        );
        if found > ceiling {
            violations.push(format!("{percentile}th percentile: expected at most {ceiling}, found {found}"));
        }
    }
    uphold("Most functions are short: one thing each, named after it.", &violations);
}

#[test]
fn files_stay_within_their_ceiling() {
    let mut files: Vec<(usize, &Path)> =
        rust::files().iter().map(|file| (file.lines.len(), file.path.as_path())).collect();
    files.sort_by(|a, b| b.cmp(a));
    for (lines, path) in files.iter().take(SHOWN) {
        println!("{lines:5} lines in {}", path.display());
    }
    let too_long = files.iter().filter(|(lines, _)| *lines > FILE_CEILING);
    let violations: Vec<String> =
        too_long.map(|(lines, path)| format!("{}: {lines} lines", path.display())).collect();
    uphold("A file has at most 800 lines; make it a folder of one idea per file.", &violations);
}

#[test]
fn crates_stay_within_their_budget() {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for file in rust::files() {
        let Some(row) = layout::owner(&file.path) else { continue };
        if file.path.starts_with(Path::new(row.folder).join("src")) {
            *lines.entry(row.name).or_default() += file.code_lines();
        }
    }
    let mut violations = Vec::new();
    for (name, found) in lines {
        let target = layout::row(name).expect("the owner has a row").lines;
        println!("{found:6} lines of code in {name} (target {target})");
        if found > target * 3 / 2 {
            violations.push(format!("{name}: target {target}, found {found}"));
        }
    }
    uphold("A crate that outgrows its target by half deserves a question.", &violations);
}

fn functions() -> impl Iterator<Item = (&'static RustFile, &'static Function)> {
    rust::files().iter().flat_map(|file| file.functions.iter().map(move |function| (file, function)))
}

/// What is wrong with the length of `function`, if anything.
fn objection(file: &RustFile, function: &Function) -> Option<String> {
    judge(function.lines, reason(file, function).as_deref())
}

fn judge(lines: usize, reason: Option<&str>) -> Option<String> {
    let exempt = reason.is_some_and(|reason| EXEMPT.iter().any(|words| reason.contains(words)));
    if lines > CEILING && !exempt {
        Some(format!("{lines} lines; over {CEILING} only where the reason names one of {EXEMPT:?}"))
    } else if lines > UNEXPLAINED_CEILING && reason.is_none() {
        Some(format!("{lines} lines; over {UNEXPLAINED_CEILING} it needs `// long: <why>` just above"))
    } else {
        None
    }
}

/// The text after `// long:` in the comments just above a function or among its attributes.
fn reason(file: &RustFile, function: &Function) -> Option<String> {
    let above = file.lines[..function.attributes_line - 1].iter().rev();
    let above = above.take_while(|line| line.trim_start().starts_with("//"));
    let among = &file.lines[function.attributes_line - 1..function.line];
    let mut comment = above.chain(among).filter_map(|line| Some(line.trim().strip_prefix("//")?.trim()));
    comment.find_map(|line| Some(line.strip_prefix("long:")?.trim().to_owned()))
}

fn print_longest() {
    let mut longest: Vec<_> = functions().collect();
    longest.sort_by_key(|(_, function)| std::cmp::Reverse(function.lines));
    for (file, function) in longest.into_iter().take(SHOWN) {
        println!("{:5} lines in {}", function.lines, at(file, function));
    }
}

fn at(file: &RustFile, function: &Function) -> String {
    format!("{}:{} {}", file.path.display(), function.line, function.name)
}

/// (percentile, lines at most).
const PERCENTILES: [(usize, usize); 3] = [(50, 10), (90, 30), (99, 80)];
const UNEXPLAINED_CEILING: usize = 80;
const CEILING: usize = 120;
/// Reasons that lift even the second ceiling.
const EXEMPT: [&str; 2] = ["instruction set", "kernel body"];
const FILE_CEILING: usize = 800;
/// How many of the longest are printed.
const SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_need_a_reason_and_longer_ones_a_good_one() {
        let instruction_set = Some("one match over the instruction set");
        assert_eq!(judge(80, None), None);
        assert!(judge(81, None).is_some());
        assert_eq!(judge(120, Some("a table")), None);
        assert!(judge(121, Some("a table")).is_some());
        assert_eq!(judge(300, instruction_set), None);
    }
}
