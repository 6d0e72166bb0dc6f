//! The fake driver, for tests that share one process: one of them at a time.

#![allow(dead_code)]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ccl_cuda::Driver;
use libloading::Library;

/// The fake driver, and the right to let it fail.
pub(crate) struct Fake {
    pub(crate) driver: Driver,
    library: Library,
    _alone: Option<MutexGuard<'static, ()>>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Fake {
    pub(crate) fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self::at(&path(), Some(alone))
    }

    /// Another one, which lacks a function.
    pub(crate) fn lacking(&self, function: &str) -> Self {
        let file = without(function, &std::env::temp_dir());
        let fake = Self::at(&file, None);
        std::fs::remove_file(file).unwrap();
        fake
    }

    fn at(path: &Path, alone: Option<MutexGuard<'static, ()>>) -> Self {
        let driver = Driver::load(Some(path)).unwrap();
        // SAFETY: the library was loaded above; opening it again runs nothing.
        let library = unsafe { Library::new(path) }.unwrap();
        let fake = Self { driver, library, _alone: alone };
        fake.reset();
        fake
    }

    /// The `nth` call of `function` from now on fails with `code`.
    pub(crate) fn fail(&self, function: &str, nth: u64, code: i32) {
        let function = CString::new(function).unwrap();
        // SAFETY: the signature is that of the fake driver.
        unsafe {
            let fail = self.library.get::<unsafe extern "C" fn(*const c_char, u64, i32)>(b"ccl_fake_fail\0");
            fail.unwrap()(function.as_ptr(), nth, code);
        }
    }

    pub(crate) fn reset(&self) {
        // SAFETY: the signature is that of the fake driver.
        unsafe { self.library.get::<unsafe extern "C" fn()>(b"ccl_fake_reset\0").unwrap()() }
    }

    pub(crate) fn live(&self, kind: &str) -> u64 {
        self.ask(b"ccl_fake_live\0", kind)
    }

    pub(crate) fn calls(&self, function: &str) -> u64 {
        self.ask(b"ccl_fake_calls\0", function)
    }

    /// How many calls of a function failed on purpose.
    pub(crate) fn failed(&self, function: &str) -> u64 {
        self.ask(b"ccl_fake_failed\0", function)
    }

    /// Asserts that nothing is left. What graphs keep goes a little later.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self, after: &str) {
        let begin = Instant::now();
        while self.live("all") > 0 && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let left: Vec<_> = self.kinds().filter(|kind| self.live(kind) > 0).collect();
        assert!(left.is_empty(), "after {after}: {left:?} left");
    }

    /// The names of all kinds of objects.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        // SAFETY: the signature is that of the fake driver; names are never freed, nor is the library.
        let name = |index| unsafe {
            let kind = self.library.get::<extern "C" fn(usize) -> *const c_char>(b"ccl_fake_kind\0");
            let name = kind.unwrap()(index);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_str().unwrap())
        };
        (0..).map_while(name)
    }

    fn ask(&self, question: &[u8], about: &str) -> u64 {
        let about = CString::new(about).unwrap();
        // SAFETY: the signature is that of the fake driver.
        unsafe {
            self.library.get::<unsafe extern "C" fn(*const c_char) -> u64>(question).unwrap()(about.as_ptr())
        }
    }
}

/// Where cargo put the fake driver; built here if only one test was asked for.
pub(crate) fn path() -> PathBuf {
    let beside = std::env::current_exe().unwrap();
    let folder = beside.parent().unwrap().parent().unwrap().join("examples");
    let file = folder.join("libccl_cuda_fake_driver.so");
    if !file.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--offline", "-p", "ccl-cuda", "--example", "ccl_cuda_fake_driver"])
            .status();
        assert!(built.unwrap().success() && file.exists(), "no {}", file.display());
    }
    file
}

/// The fake driver's path in other words: what is known of a path is kept.
pub(crate) fn said_otherwise(detour: &str) -> PathBuf {
    let path = path();
    format!("{}/{detour}libccl_cuda_fake_driver.so", path.parent().unwrap().display()).into()
}

pub(crate) fn hex(bytes: &[u8; 64]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn bytes(text: &str) -> [u8; 64] {
    std::array::from_fn(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap())
}

/// A copy of the fake driver that lacks a function: its name is another in the copy.
pub(crate) fn without(function: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(path()).unwrap();
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places: Vec<_> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "{function} is not in the fake driver");
    places.iter().for_each(|at| bytes[at + 1] = b'x');
    let file = folder.join(format!("without_{function}_{}.so", std::process::id()));
    std::fs::write(&file, bytes).unwrap();
    file
}
