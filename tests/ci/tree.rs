//! The files of the repository: everything that git would not ignore.

use std::path::{Path, PathBuf};

use ignore::WalkBuilder;

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every file that belongs to the repository, relative to its root, in order.
pub(crate) fn files() -> Vec<PathBuf> {
    let walk = WalkBuilder::new(root())
        .hidden(false)
        .require_git(false)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_path(Path::cmp)
        .build();
    walk.map(|entry| entry.expect("the repository can be read"))
        .filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()))
        .map(|entry| entry.path().strip_prefix(root()).expect("the walk stays inside").to_owned())
        .collect()
}

/// The files whose name ends in `.extension`.
pub(crate) fn files_ending(extension: &str) -> Vec<PathBuf> {
    files().into_iter().filter(|path| path.extension().is_some_and(|end| end == extension)).collect()
}

/// The text of a file given relative to the root; `None` if it is not text.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(bytes(path.as_ref())).ok()
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
