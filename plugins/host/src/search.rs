//! Where plugins are looked for.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// One file that was considered, and what became of it. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file, or the bare name if it was left to the system's loader.
    pub file: PathBuf,
    /// Contracts it offers, by symbol.
    pub versions: Vec<String>,
    /// Chosen, or why not.
    pub verdict: Verdict,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the one; how it was checked.
    Chosen(String),
    /// It is not; why.
    Refused(String),
}

impl Candidate {
    pub(crate) fn refused(
        file: impl Into<PathBuf>,
        versions: Vec<String>,
        why: impl Into<String>,
    ) -> Candidate {
        Candidate { file: file.into(), versions, verdict: Verdict::Refused(why.into()) }
    }

    /// Whether this is the one.
    pub fn is_chosen(&self) -> bool {
        matches!(self.verdict, Verdict::Chosen(_))
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if !self.versions.is_empty() {
            write!(f, " (offers {})", self.versions.join(", "))?;
        }
        match &self.verdict {
            Verdict::Chosen(how) => write!(f, ": chosen, {how}"),
            Verdict::Refused(why) => write!(f, ": not used, {why}"),
        }
    }
}

/// Where a plugin may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file, or a bare name for the system's loader.
    File(PathBuf),
    /// Linked into the program, and found by its symbols.
    Program,
}

impl Place {
    /// What a candidate is called.
    pub(crate) fn name(&self) -> &Path {
        match self {
            Place::File(file) => file,
            Place::Program => Path::new(STATIC_PLUGIN),
        }
    }
}

/// What one entry of a specification may mean, in order of preference: as ccl names plugins, then as NCCL does.
/// Files that are given by path are listed whether or not they exist, and so are names for the loader.
pub(crate) fn places_for(kind: &str, entry: &str, directories: &[PathBuf]) -> Vec<Place> {
    // NCCL takes any beginning of the word.
    if STATIC_PLUGIN.to_ascii_lowercase().starts_with(&entry.to_ascii_lowercase()) {
        return vec![Place::Program];
    }
    files_for(kind, entry, directories).into_iter().map(Place::File).collect()
}

fn files_for(kind: &str, entry: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
    if entry.contains('/') {
        return vec![PathBuf::from(entry)];
    }
    let is_file_name = entry.ends_with(".so") || entry.contains(".so.");
    let ours = match is_file_name {
        true => vec![entry.to_string()],
        false => vec![format!("libccl-{kind}-{entry}.so"), format!("libccl_{kind}_{entry}.so")],
    };
    let mut found = found_and_bare(&ours, directories);
    if !is_file_name {
        // NCCL first tries the name as it is.
        found.push(PathBuf::from(entry));
    }
    if !(entry.starts_with("lib") && is_file_name) {
        found.extend(found_and_bare(&[format!("libnccl-{kind}-{entry}.so")], directories));
    }
    found
}

/// The files of these names in the directories, then the names for the loader.
fn found_and_bare(names: &[String], directories: &[PathBuf]) -> Vec<PathBuf> {
    let everywhere = directories.iter().flat_map(|directory| names.iter().map(|name| directory.join(name)));
    let mut found: Vec<PathBuf> = everywhere.filter(|path| path.is_file()).collect();
    found.extend(names.iter().map(PathBuf::from));
    found
}

/// `LD_LIBRARY_PATH`, then around the executable: where cargo, a tarball and an installation put
/// libraries. The system's own directories come last, by the loader.
pub(crate) fn directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|paths| env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    if let Some(beside) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        directories.extend([beside.to_path_buf(), beside.join("deps")]);
        if let Some(parent) = beside.parent() {
            directories.extend([parent.to_path_buf(), parent.join("lib")]);
        }
    }
    directories
}

/// What NCCL calls a plugin that is linked into the program.
const STATIC_PLUGIN: &str = "STATIC_PLUGIN";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_its_spellings_and_a_path_means_itself() {
        let files = |entry: &str| files_for("net", entry, &[PathBuf::from("/nowhere")]);
        assert_eq!(files("/x/y.so"), [PathBuf::from("/x/y.so")]);
        assert_eq!(files("libfoo.so"), [PathBuf::from("libfoo.so")]);
        assert_eq!(
            files("foo"),
            ["libccl-net-foo.so", "libccl_net_foo.so", "foo", "libnccl-net-foo.so"].map(PathBuf::from)
        );
        assert_eq!(files("foo.so"), ["foo.so", "libnccl-net-foo.so.so"].map(PathBuf::from), "as NCCL has it");
    }

    #[test]
    fn any_beginning_of_static_plugin_means_the_program() {
        for entry in ["STATIC_PLUGIN", "static_plugin", "Static", "s"] {
            assert_eq!(places_for("net", entry, &[]), [Place::Program], "{entry}");
        }
        for entry in ["socket", "static_plugins", "foo"] {
            assert!(!places_for("net", entry, &[]).contains(&Place::Program), "{entry}");
        }
    }

    #[test]
    fn a_candidate_is_one_line() {
        let candidate = Candidate::refused("libx.so", vec!["cclNet_v1".into()], "expected 1, found 2");
        assert_eq!(candidate.to_string(), "libx.so (offers cclNet_v1): not used, expected 1, found 2");
    }
}
