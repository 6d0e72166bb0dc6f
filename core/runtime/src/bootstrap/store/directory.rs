//! A store in a directory that all ranks see.
//!
//! In a folder of its own, open to its owner only, each rank writes `hello.RANK.NONCE` with a nonce it has just
//! drawn; rank 0 answers each with `id.NONCE`; the rank takes the answer and removes both. So what a
//! crashed job left there is never taken for an answer. Rank 0 is done when an answered hello of every
//! rank has gone, and removes the folder.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ccl_plan::Rank;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::bootstrap::store::Store;
use crate::bootstrap::store::wait::{Pauses, key_missing, ranks_missing};
use crate::error::{Error, Result};

/// A directory that all ranks see, such as one on a shared file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    rank: Rank,
    nranks: u32,
}

impl Directory {
    /// The directory at `path`, which must be there, for `rank` of `nranks`.
    pub fn new(path: &Path, rank: Rank, nranks: u32) -> Directory {
        Directory { path: path.to_owned(), rank, nranks }
    }

    /// The folder of a key. Anybody of this user may make it, and whoever finds it checks whose it is.
    fn folder(&self, key: &str) -> Result<PathBuf> {
        let folder = self.path.join(format!("ccl-{}", &blake3::hash(key.as_bytes()).to_hex()[..32]));
        self.make(&folder).map_err(|error| self.failed(&error))?;
        Ok(folder)
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let metadata = fs::symlink_metadata(folder)?;
        if metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0 {
            return Ok(());
        }
        let words = format!(
            "{} belongs to user {} with mode {:o}",
            folder.display(),
            metadata.uid(),
            metadata.mode() & 0o777
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, words))
    }

    /// Answers hellos until every rank has taken an answer.
    fn serve(&self, folder: &Path, key: &str, value: &[u8], deadline: Instant) -> Result<()> {
        let mut pauses = Pauses::new();
        let mut missing: BTreeSet<u32> = (1..self.nranks).collect();
        let mut answered = BTreeSet::new();
        loop {
            let hellos = hellos(folder).map_err(|error| self.failed(&error))?;
            for hello in hellos.difference(&answered.clone()).filter(|hello| hello.rank < self.nranks) {
                write_whole(&folder.join(hello.answer()), value).map_err(|error| self.failed(&error))?;
                answered.insert(hello.clone());
            }
            for hello in answered.difference(&hellos) {
                missing.remove(&hello.rank);
            }
            if missing.is_empty() {
                return Ok(());
            }
            if !pauses.pause(deadline) {
                let missing: Vec<_> = missing.into_iter().collect();
                return Err(ranks_missing(key, &self.words(), &missing, self.nranks as usize - 1));
            }
        }
    }

    /// Writes a hello, again if rank 0 of an earlier job has removed it, and waits for its answer.
    fn ask(&self, folder: &Path, key: &str, hello: &Hello, deadline: Instant) -> Result<Vec<u8>> {
        let mut pauses = Pauses::new();
        let step = || -> io::Result<Option<Vec<u8>>> {
            self.make(folder)?;
            let path = folder.join(hello.name());
            if !path.exists() {
                write_whole(&path, b"")?;
            }
            match fs::read(folder.join(hello.answer())) {
                Ok(value) => Ok(Some(value)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        loop {
            match step() {
                Ok(Some(value)) => return Ok(value),
                // The folder went away between two calls; the next turn makes it anew.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failed(&error)),
                _ => {}
            }
            if !pauses.pause(deadline) {
                return Err(key_missing(key, Rank(0), &self.words(), "rank 0 has not answered"));
            }
        }
    }

    fn words(&self) -> String {
        format!("the directory {}", self.path.display())
    }

    fn failed(&self, error: &io::Error) -> Error {
        let doing = format!("exchange the unique id in {}", self.words());
        let error = io::Error::new(error.kind(), error.to_string());
        Error::system(
            &doing,
            error,
            "CCL_STORE=file:DIRECTORY needs a directory that all ranks see and may write",
        )
    }
}

impl Store for Directory {
    fn set(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<()> {
        let folder = self.folder(key)?;
        let served = self.serve(&folder, key, value, deadline);
        // What is left is a dead job's, or holds the id: away with it in any case.
        let _ = fs::remove_dir_all(&folder);
        served
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>> {
        let folder = self.folder(key)?;
        let hello = Hello { rank: self.rank.0, nonce: nonce()? };
        let value = self.ask(&folder, key, &hello, deadline);
        // The answer first: that the hello has gone tells rank 0 that nobody reads any more.
        let _ = fs::remove_file(folder.join(hello.answer()));
        let _ = fs::remove_file(folder.join(hello.name()));
        if value.is_err() {
            // Only an empty folder goes.
            let _ = fs::remove_dir(&folder);
        }
        value
    }
}

/// A rank that asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hello {
    rank: u32,
    nonce: String,
}

impl Hello {
    fn name(&self) -> String {
        format!("hello.{}.{}", self.rank, self.nonce)
    }

    fn answer(&self) -> String {
        format!("id.{}", self.nonce)
    }

    fn parse(name: &str) -> Option<Hello> {
        let (rank, nonce) = name.strip_prefix("hello.")?.split_once('.')?;
        let plain = nonce.len() == NONCE_DIGITS && nonce.bytes().all(|digit| digit.is_ascii_hexdigit());
        plain.then_some(Hello { rank: rank.parse().ok()?, nonce: nonce.to_owned() })
    }
}

fn hellos(folder: &Path) -> io::Result<BTreeSet<Hello>> {
    let names = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    Ok(names.iter().filter_map(|name| Hello::parse(name.to_str()?)).collect())
}

/// Writes a file that appears complete, readable by its owner only.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?.write_all(bytes)?;
    fs::rename(&draft, path)
}

fn nonce() -> Result<String> {
    let mut bytes = [0; NONCE_DIGITS / 2];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::system("draw random bytes", error, "see getrandom(2)"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

const NONCE_DIGITS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_are_read_from_names() {
        let hello = Hello { rank: 3, nonce: nonce().unwrap() };
        assert_eq!(Hello::parse(&hello.name()), Some(hello.clone()));
        let draft = Path::new(&hello.name()).with_extension("draft");
        for other in [hello.answer(), draft.display().to_string(), "hello.1.../x".into(), "hello.x.y".into()]
        {
            assert_eq!(Hello::parse(&other), None, "{other}");
        }
    }
}
