//! The files that a profiler writes.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::context::Stage;
use crate::breach::{Outcome, expect, skip};

pub(super) fn files(stage: &Stage) -> Outcome<String> {
    let before = open_files()?;
    let mut context = stage.context(0)?;
    let mut seen = BTreeSet::new();
    for _ in 0..LAUNCHES {
        context.launch();
        seen.extend(open_files()?.difference(&before).cloned());
    }
    context.finalize(0);
    let after = open_files()?;
    for file in &seen {
        let shown = file.display();
        expect(!after.contains(file), || {
            format!("expected {shown} to be closed by finalize, found it open")
        })?;
        // A file that was moved or removed is the plugin's own affair.
        if let Ok(found) = fs::metadata(file) {
            expect(found.len() > 0, || format!("expected events in {shown}, found it empty"))?;
        }
    }
    match seen.len() {
        0 => Ok("none was open while it was told of events".to_owned()),
        _ => Ok(format!(
            "wrote {}",
            seen.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
        )),
    }
}

/// The ordinary files that this process has open.
fn open_files() -> Outcome<BTreeSet<PathBuf>> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return skip("/proc/self cannot be read here") };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    Ok(links.filter(|file| file.is_file()).collect())
}

const LAUNCHES: usize = 20;
