//! Compiled kernels on disk, for every later process of the user: one file for each, named after all that it was made
//! from. Code that devices run is taken from nobody else.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::geteuid;

/// What a kernel was made from, as a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Key(String);

impl Key {
    /// The digest of parts, each of which counts with its length.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Key {
        let mut digest = blake3::Hasher::new();
        for part in parts {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        Key(digest.finalize().to_hex().to_string())
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

/// A folder of compiled kernels. What goes wrong with it is logged and costs time, never more.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    most_bytes: u64,
}

impl Cache {
    pub(super) fn new(folder: PathBuf) -> Cache {
        Cache { folder, most_bytes: MOST_BYTES }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kernel under this key. An entry that is not whole goes away.
    pub(super) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let file = self.file(key);
        let found = self.trusted().and_then(|()| read(&file));
        let why = match found {
            Ok(bytes) => match opened(key, &bytes) {
                Some(image) => return Some(image.to_vec()),
                None => "not whole, dropped".to_owned(),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => error.to_string(),
        };
        tracing::warn!(target: "ccl::exec", file = %file.display(), why, "a compiled kernel is not used");
        if self.trusted().is_ok() {
            // Of another user's folder nothing is taken away; an entry that is a link goes, what it leads to stays.
            let _ = fs::remove_file(&file);
        }
        None
    }

    /// Keeps a kernel. Whoever looks meanwhile finds nothing or all of it.
    pub(super) fn put(&self, key: &Key, image: &[u8]) {
        let written = self.make().and_then(|()| {
            let mut file = tempfile::Builder::new().prefix(NEW).tempfile_in(&self.folder)?;
            file.write_all(&sealed(key, image))?;
            file.persist(self.file(key)).map_err(|error| error.error)
        });
        match written {
            Ok(_) => self.sweep(),
            Err(error) => {
                let folder = self.folder.display();
                tracing::info!(target: "ccl::exec", %folder, %error, "a compiled kernel is not kept");
            }
        }
    }

    /// The right to compile what keys like this one name, which other processes wait for; nothing if it cannot be had,
    /// or not in time: then several compile the same.
    pub(super) fn alone(&self, key: &Key, patience: Duration) -> Option<File> {
        self.make().ok()?;
        let name = format!("{LOCK}{}", key.name().get(..1)?);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(self.folder.join(name)).ok()?;
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) if begin.elapsed() < patience => std::thread::sleep(STEP),
                Err(_) => return None,
            }
        }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}{ENDING}", key.name()))
    }

    /// Makes the folder, for this user only.
    fn make(&self) -> io::Result<()> {
        if !self.folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        }
        self.trusted()
    }

    /// Refuses a folder in which somebody else may write.
    fn trusted(&self) -> io::Result<()> {
        let folder = fs::metadata(&self.folder)?;
        if folder.is_dir() && is_own(&folder) { Ok(()) } else { Err(another_users()) }
    }

    /// Takes away what was used least lately until the rest is small enough, and what a process left that ended midway.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut kept = Vec::new();
        for entry in entries.flatten() {
            let (name, facts) = (entry.file_name(), entry.metadata());
            let (Some(name), Ok(facts)) = (name.to_str(), facts) else { continue };
            let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let is_old = used.elapsed().is_ok_and(|age| age > LEFT_OVER);
            if name.starts_with(NEW) && is_old {
                let _ = fs::remove_file(entry.path());
            } else if name.ends_with(ENDING) {
                kept.push((used, facts.len(), entry.path()));
            }
        }
        kept.sort_unstable_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut bytes = 0;
        for (_, length, file) in kept {
            bytes += length;
            if bytes > self.most_bytes {
                let _ = fs::remove_file(file);
            }
        }
    }
}

/// What an entry holds: a mark, the key, the digest of the image, the image.
fn sealed(key: &Key, image: &[u8]) -> Vec<u8> {
    [MARK, key.name().as_bytes(), blake3::hash(image).as_bytes(), image].concat()
}

/// The image in an entry that is whole and of this key.
fn opened<'a>(key: &Key, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(MARK)?.strip_prefix(key.name().as_bytes())?;
    let (digest, image) = rest.split_at_checked(blake3::OUT_LEN)?;
    (blake3::hash(image).as_bytes() == digest).then_some(image)
}

/// An entry's bytes. Notes that it was used.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(file)?;
    let facts = file.metadata()?;
    if !facts.is_file() || !is_own(&facts) {
        return Err(another_users());
    }
    if facts.len() > MOST_ENTRY_BYTES {
        return Err(io::Error::other("longer than any kernel"));
    }
    let mut bytes = Vec::with_capacity(facts.len() as usize);
    Read::by_ref(&mut file).take(MOST_ENTRY_BYTES).read_to_end(&mut bytes)?;
    let _ = file.set_modified(SystemTime::now());
    Ok(bytes)
}

/// Whether it is this user's, and nobody else may write it.
fn is_own(facts: &Metadata) -> bool {
    facts.uid() == geteuid().as_raw() && facts.mode() & 0o022 == 0
}

fn another_users() -> io::Error {
    io::Error::other("another user owns it or may write it")
}

const MARK: &[u8] = b"ccl kernel 1\n";
const ENDING: &str = ".kernel";
const NEW: &str = ".new";
const LOCK: &str = "lock.";
/// Of all entries: thousands of kernels.
const MOST_BYTES: u64 = 256 << 20;
const MOST_ENTRY_BYTES: u64 = 16 << 20;
/// Between two looks at whether another process has compiled.
const STEP: Duration = Duration::from_millis(20);
/// No process writes an entry for so long.
const LEFT_OVER: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Barrier;

    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("ccl/kernels"));
        (folder, cache)
    }

    fn key(text: &str) -> Key {
        Key::of([text])
    }

    fn files(cache: &Cache) -> Vec<String> {
        let names = fs::read_dir(&cache.folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn keys_know_where_parts_end() {
        assert_ne!(Key::of(["ab", "c"]), Key::of(["a", "bc"]));
        assert_ne!(Key::of(["a"]), Key::of(["a", ""]));
        assert_eq!(Key::of(["a", "b"]), Key::of(["a", "b"]));
    }

    #[test]
    fn what_was_put_is_found_by_its_key_alone() {
        let (_folder, cache) = cache();
        assert_eq!(cache.get(&key("a")), None, "there is not even a folder");
        cache.put(&key("a"), b"code");
        cache.put(&key("empty"), b"");
        assert_eq!(cache.get(&key("a")).unwrap(), b"code");
        assert_eq!(cache.get(&key("empty")).unwrap(), b"");
        assert_eq!(cache.get(&key("b")), None);
        assert_eq!(fs::metadata(&cache.folder).unwrap().mode() & 0o777, 0o700);
        fs::copy(cache.file(&key("a")), cache.file(&key("b"))).unwrap();
        assert_eq!(cache.get(&key("b")), None, "another's entry");
    }

    #[test]
    fn an_entry_that_is_not_whole_goes_and_is_made_again() {
        let (_folder, cache) = cache();
        let whole = sealed(&key("a"), b"code");
        let cuts = (0..whole.len()).map(|cut| whole[..cut].to_vec());
        let flips = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        });
        for broken in cuts.chain(flips).chain([[&whole[..], b"x"].concat()]) {
            cache.put(&key("a"), b"code");
            fs::write(cache.file(&key("a")), broken).unwrap();
            assert_eq!(cache.get(&key("a")), None);
            assert!(!cache.file(&key("a")).exists());
        }
        cache.put(&key("a"), b"code");
        assert_eq!(cache.get(&key("a")).unwrap(), b"code");
    }

    #[test]
    fn what_others_may_write_is_not_used() {
        let (folder, cache) = cache();
        cache.put(&key("a"), b"code");
        let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        allow(&cache.file(&key("a")), 0o620);
        assert_eq!(cache.get(&key("a")), None, "a file that the group may write");
        cache.put(&key("a"), b"code");
        allow(&cache.folder, 0o777);
        assert_eq!(cache.get(&key("a")), None, "a folder that everybody may write");
        cache.put(&key("b"), b"code");
        allow(&cache.folder, 0o700);
        assert_eq!((cache.get(&key("b")), cache.get(&key("a")).as_deref()), (None, Some(&b"code"[..])));
        let real = folder.path().join("real");
        fs::rename(cache.file(&key("a")), &real).unwrap();
        symlink(&real, cache.file(&key("a"))).unwrap();
        assert_eq!(cache.get(&key("a")), None, "a link");
        assert!(real.exists());
        if geteuid().is_root() {
            cache.put(&key("a"), b"code");
            std::os::unix::fs::chown(cache.file(&key("a")), Some(12_345), None).unwrap();
            assert_eq!(cache.get(&key("a")), None, "another user's file");
            std::os::unix::fs::chown(&cache.folder, Some(12_345), None).unwrap();
            cache.put(&key("a"), b"code");
            assert!(!cache.file(&key("a")).exists(), "another user's folder");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_nothing_but_time() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let cache = Cache::new(folder.path().join("file/kernels"));
        cache.put(&key("a"), b"code");
        assert_eq!(cache.get(&key("a")), None);
        assert!(cache.alone(&key("a"), Duration::ZERO).is_none());
    }

    #[test]
    fn what_was_used_least_lately_goes_first() {
        let (_folder, mut cache) = cache();
        cache.most_bytes = 3 * sealed(&key("a"), &[0; 1000]).len() as u64;
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (index, name) in ["a", "b", "c"].iter().enumerate() {
            cache.put(&key(name), &[0; 1000]);
            File::open(cache.file(&key(name))).unwrap().set_modified(at(index as u64)).unwrap();
        }
        let left = cache.folder.join(format!("{NEW}left"));
        File::create(&left).unwrap().set_modified(at(0)).unwrap();
        let fresh = cache.folder.join(format!("{NEW}fresh"));
        File::create(&fresh).unwrap();
        assert!(cache.get(&key("a")).is_some(), "used now");
        cache.put(&key("d"), &[0; 1000]);
        let had = ["a", "b", "c", "d"].map(|name| cache.file(&key(name)).exists());
        assert_eq!(had, [true, false, true, true]);
        assert_eq!((left.exists(), fresh.exists()), (false, true));
    }

    #[test]
    fn one_compiles_and_the_others_wait_but_not_for_ever() {
        let (_folder, cache) = cache();
        let held = cache.alone(&key("a"), Duration::ZERO).unwrap();
        let begin = Instant::now();
        assert!(cache.alone(&key("a"), Duration::from_millis(50)).is_none());
        assert!(begin.elapsed() >= Duration::from_millis(50));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| cache.alone(&key("a"), Duration::from_secs(20)).is_some());
            drop(held);
            assert!(other.join().unwrap());
        });
        assert_eq!(files(&cache).len(), 1, "only the lock");
    }

    #[test]
    fn many_at_once_find_nothing_or_all_of_it() {
        let (_folder, cache) = cache();
        let (code, begin) = (vec![7; 100_000], Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    begin.wait();
                    (0..50).for_each(|_| cache.put(&key("a"), &code));
                });
                scope.spawn(|| {
                    begin.wait();
                    for _ in 0..200 {
                        assert!(cache.get(&key("a")).is_none_or(|found| found == code));
                    }
                });
            }
        });
        assert_eq!(files(&cache), [cache.file(&key("a")).file_name().unwrap().to_str().unwrap()]);
    }
}
