//! Settings that do something.

use std::path::Path;

use regex::Regex;

use crate::{tree, uphold};

#[test]
fn every_setting_is_read() {
    let table = tree::text(TABLE).expect("the table is text");
    let row = Regex::new(r#"(?m)^\s+(\w+): \S.* = "[^"]*", (\w+)"#).expect("the expression is well formed");
    let folder = Path::new(TABLE).parent().expect("the table lies in a folder");
    let sources = tree::files_ending("rs").into_iter().filter(|path| !path.starts_with(folder));
    let code: String = sources.filter_map(tree::text).collect();
    let rows: Vec<_> = row.captures_iter(&table).map(|found| found.extract::<2>().1).collect();
    assert!(rows.len() > 10, "expected the rows of {TABLE}, found {}", rows.len());
    let unread = rows.iter().filter(|[accessor, _]| !code.contains(&format!(".{accessor}()")));
    let violations: Vec<String> = unread
        .filter(|[_, name]| !READ_WHILE_LOADING.contains(name))
        .map(|[_, name]| (*name).to_owned())
        .collect();
    uphold(
        "A setting that nothing reads is a promise nobody keeps: read it, or take its row away.",
        &violations,
    );
}

const TABLE: &str = "core/runtime/src/config/table.rs";
/// Say where other settings come from.
const READ_WHILE_LOADING: [&str; 2] = ["CCL_CONF_FILE", "CCL_ENV_PLUGIN"];
