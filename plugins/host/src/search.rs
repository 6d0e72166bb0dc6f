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

/// The files that one entry of a specification may mean, in order of preference. Files that are
/// given by path are listed whether or not they exist; the last entry of a name is for the loader.
pub(crate) fn files_for(kind: &str, entry: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
    if entry.contains('/') {
        return vec![PathBuf::from(entry)];
    }
    let names = if entry.ends_with(".so") || entry.contains(".so.") {
        vec![entry.to_string()]
    } else {
        vec![format!("libccl-{kind}-{entry}.so"), format!("libccl_{kind}_{entry}.so")]
    };
    let mut found: Vec<PathBuf> = directories
        .iter()
        .flat_map(|directory| names.iter().map(|name| directory.join(name)))
        .filter(|path| path.is_file())
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_both_spellings_and_a_path_means_itself() {
        assert_eq!(files_for("net", "/x/y.so", &[]), [PathBuf::from("/x/y.so")]);
        assert_eq!(files_for("net", "libfoo.so", &[]), [PathBuf::from("libfoo.so")]);
        assert_eq!(
            files_for("net", "foo", &[PathBuf::from("/nowhere")]),
            [PathBuf::from("libccl-net-foo.so"), PathBuf::from("libccl_net_foo.so")]
        );
    }

    #[test]
    fn a_candidate_is_one_line() {
        let candidate = Candidate::refused("libx.so", vec!["cclNet_v1".into()], "expected 1, found 2");
        assert_eq!(candidate.to_string(), "libx.so (offers cclNet_v1): not used, expected 1, found 2");
    }
}
