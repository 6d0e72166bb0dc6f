//! Files of settings: `NAME=VALUE` lines.
//!
//! As NCCL reads them: a line is split at its first `=`, nothing is trimmed or unquoted, lines that
//! begin with `#` and lines without `=` are skipped, and so is a carriage return at the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) path: Arc<PathBuf>,
    pub(super) number: usize,
}

/// The settings that `text`, read from `path`, makes.
pub(super) fn parse(path: &Path, text: &str) -> Vec<Line> {
    let path = Arc::new(path.to_owned());
    let numbered = text.lines().zip(1..).filter(|(line, _)| !line.starts_with('#'));
    numbered
        .filter_map(|(line, number)| {
            let (name, value) = line.split_once('=')?;
            Some(Line { name: name.into(), value: value.into(), path: path.clone(), number })
        })
        .collect()
}

/// Reads a file that need not be there.
pub(super) fn read_if_present(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, error)),
    }
}

/// Reads a file that the user named.
pub(super) fn read_named(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let doing = format!("read the settings file {}", path.display());
    Error::system(&doing, error, "correct CCL_CONF_FILE, or the file's permissions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_at_the_first_equals_sign() {
        let text = "# a comment\nCCL_ALGO=ring\r\n\nno value\nCCL_NET= a=b \n#CCL_NET=c\n";
        let found: Vec<_> = parse(Path::new("f"), text)
            .into_iter()
            .map(|line| (line.name, line.value, line.number))
            .collect();
        let expected = [("CCL_ALGO", "ring", 2), ("CCL_NET", " a=b ", 5)];
        assert_eq!(found, expected.map(|(name, value, number)| (name.into(), value.into(), number)));
    }

    #[test]
    fn a_missing_file_matters_only_if_named() {
        let missing = Path::new("/nonexistent/ccl.conf");
        assert_eq!(read_if_present(missing), Ok(None));
        assert!(read_named(missing).unwrap_err().to_string().contains("/nonexistent/ccl.conf"));
    }
}
