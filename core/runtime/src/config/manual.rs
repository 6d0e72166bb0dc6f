//! The chapter of the manual on settings, made from the table.

use std::fmt::Write;

use crate::config::table::{Agreement, SETTINGS, Section, Setting};

/// The chapter in Markdown. `docs/manual/settings.md` holds it; a test compares.
pub fn settings_chapter() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (section, title) in SECTIONS {
        let rows = SETTINGS.iter().filter(|setting| setting.section == section).map(row).collect::<String>();
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## {title}\n\n{HEADER}{rows}");
    }
    text
}

fn row(setting: &Setting) -> String {
    let default = match (setting.default, setting.default.strip_prefix('=')) {
        ("", _) => "not set".to_owned(),
        (_, Some(other)) => format!("that of `{other}`"),
        (default, None) => format!("`{default}`"),
    };
    let agree = if setting.agreement == Agreement::Must { "yes" } else { "no" };
    let alias = setting.alias.map_or(String::new(), |alias| format!("`{alias}`"));
    let expected = (setting.expected)();
    let about = setting.about.trim();
    format!("| `{}` | {about} | {expected} | {default} | {agree} | {alias} |\n", setting.name)
}

const SECTIONS: [(Section, &str); 8] = [
    (Section::Joining, "Joining"),
    (Section::Network, "Network"),
    (Section::Topology, "Topology"),
    (Section::Memory, "Memory and the node"),
    (Section::Devices, "Devices"),
    (Section::Choosing, "Choosing plans"),
    (Section::Progress, "Progress"),
    (Section::Logging, "Seeing"),
];

const HEADER: &str =
    "| setting | what for | takes | default | must agree | also read from |\n|---|---|---|---|---|---|\n";

const INTRODUCTION: &str = "<!-- Made from core/runtime/src/config/table.rs; \
CCL_REGENERATE=1 cargo test -p ccl settings_chapter writes it anew. -->
# Settings

A value comes from the first of these that has one: the program; the environment variable of the
setting's name; the environment variable of NCCL's name, where the table has one; the file that
`CCL_CONF_FILE` names, or else `~/.ccl.conf`; `/etc/ccl.conf`; the default. An empty value counts
as none. An env plugin, see [its chapter](../plugin-env.md), stands in place of all but the program. Files hold a `NAME=VALUE` per line; lines that begin with `#` are skipped.

A value that cannot be read is an error. A variable that begins with `CCL_` and is not a setting gives a
warning. `ccl doctor` shows every value that is not the default, and where it came from.

Ranks compare the settings marked *must agree* when they join; a difference is an error that names
the setting and both values.
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn settings_chapter_of_the_manual_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual/settings.md");
        if std::env::var_os("CCL_REGENERATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, settings_chapter()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == settings_chapter(),
            "docs/manual/settings.md is out of date: CCL_REGENERATE=1 cargo test -p ccl settings_chapter"
        );
    }

    #[test]
    fn every_setting_has_a_row_and_no_cell_breaks_the_table() {
        let chapter = settings_chapter();
        for setting in SETTINGS {
            let row = chapter.lines().find(|line| line.starts_with(&format!("| `{}` |", setting.name)));
            assert_eq!(row.unwrap().matches('|').count(), 7, "{}", setting.name);
        }
    }
}
