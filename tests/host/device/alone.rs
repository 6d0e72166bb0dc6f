//! Tests that need the driver without a device for themselves: each runs in a process of its own.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccl::{Communicator, Config, Rank, Result, Stream, UniqueId};
use ccl_tests::program;

use crate::matrix::config;

/// The driver without a device, of which this process alone makes calls.
pub(crate) struct Fake {
    library: libloading::Library,
    pub(crate) driver: ccl_cuda::Driver,
}

/// Runs `body` in a process of its own, with these settings of the driver. It is ended after a minute, so nothing hangs.
/// `place` is the module of the calling test.
pub(crate) fn alone(place: &str, test: &str, settings: &[(&str, &str)], body: impl FnOnce(&Fake)) {
    let place = place.split_once("::").map_or(place, |(_, inside)| inside);
    let name = format!("{place}::{test}");
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        body(&Fake::new());
        return println!("{DONE}");
    }
    let mut command = program::command(LIMIT_S, std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--nocapture"]).env(ALONE, &name).envs(settings.iter().copied());
    let output = program::succeeds(&mut command);
    assert!(program::both(&output).contains(DONE), "{name} did not run");
    print!("{}", program::both(&output));
}

impl Fake {
    fn new() -> Fake {
        let path = path();
        let driver = ccl_cuda::Driver::load(Some(&path)).unwrap();
        // SAFETY: the driver loaded the same library before; opening it again runs nothing.
        #[allow(unsafe_code)]
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        Fake { library, driver }
    }

    /// Takes a piece out of mapped memory.
    pub(crate) fn unmap(&self, address: u64, bytes: usize) {
        // SAFETY: the signature is the driver's; nobody uses the piece.
        #[allow(unsafe_code)]
        let code = unsafe {
            self.library.get::<unsafe extern "C" fn(u64, usize) -> i32>(b"cuMemUnmap\0").unwrap()(
                address, bytes,
            )
        };
        assert_eq!(code, 0);
    }

    /// The `nth` call of `function` from now on fails with `code`.
    pub(crate) fn fail(&self, function: &str, nth: u64, code: i32) {
        let function = CString::new(function).unwrap();
        // SAFETY: the signature is that of the driver without a device.
        #[allow(unsafe_code)]
        unsafe {
            let fail = self.library.get::<unsafe extern "C" fn(*const c_char, u64, i32)>(b"ccl_fake_fail\0");
            fail.unwrap()(function.as_ptr(), nth, code);
        }
    }

    /// Forgets failures to come, and those that stay.
    pub(crate) fn reset(&self) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            self.library.get::<unsafe extern "C" fn()>(b"ccl_fake_reset\0").unwrap()()
        }
    }

    /// How many objects of a kind there are.
    pub(crate) fn live(&self, kind: &str) -> u64 {
        self.ask(b"ccl_fake_live\0", kind)
    }

    /// How many calls of a function failed on purpose.
    pub(crate) fn failed(&self, function: &str) -> u64 {
        self.ask(b"ccl_fake_failed\0", function)
    }

    /// How many calls of a function there were.
    pub(crate) fn calls(&self, function: &str) -> u64 {
        self.ask(b"ccl_fake_calls\0", function)
    }

    /// Objects of every kind.
    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        self.kinds().map(|kind| (kind, self.live(kind))).collect()
    }

    /// Waits until nothing is left: what graphs keep goes a little later.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self, after: &str) {
        let begin = Instant::now();
        while self.live("all") > 0 && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let left: Vec<_> = self.all().into_iter().filter(|(_, count)| *count > 0).collect();
        assert!(left.is_empty(), "after {after}: {left:?} left");
    }

    /// The names of all kinds of objects.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        // SAFETY: the signature is that of the driver without a device; names are never freed, nor is the library.
        #[allow(unsafe_code)]
        let name = |index| unsafe {
            let kind = self.library.get::<extern "C" fn(usize) -> *const c_char>(b"ccl_fake_kind\0");
            let name = kind.unwrap()(index);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_str().unwrap())
        };
        (0..).map_while(name)
    }

    fn ask(&self, question: &[u8], about: &str) -> u64 {
        let about = CString::new(about).unwrap();
        // SAFETY: the signature is that of the driver without a device.
        #[allow(unsafe_code)]
        unsafe {
            self.library.get::<unsafe extern "C" fn(*const c_char) -> u64>(question).unwrap()(about.as_ptr())
        }
    }
}

/// Settings of ranks on the driver without a device.
pub(crate) fn settings(more: &[(&'static str, &str)]) -> Config {
    let library = path();
    let usual = [
        ("CCL_DEVICE", "0"),
        ("CCL_CUDA_LIBRARY", library.to_str().unwrap()),
        ("CCL_CUDA_IMAGE", concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda/interpret.cu")),
        ("CCL_CUDA_THREADS", "64"),
        ("CCL_BUFFSIZE", "16K"),
        ("CCL_SLOTS", "4"),
        // Programs are interpreted, unless a test asks for kernels of their own.
        ("CCL_CUDA_ONE_SHOT", "0"),
        ("CCL_CUDA_TWO_SHOT", "0"),
        ("CCL_TIMEOUT", "20s"),
        ("CCL_INIT_TIMEOUT", "20s"),
    ];
    // The first of a name counts.
    let usual = usual.into_iter().filter(|(name, _)| !more.iter().any(|(other, _)| other == name));
    config(&more.iter().copied().chain(usual).collect::<Vec<_>>())
}

/// All ranks of a new communicator, for one thread; each with its own settings.
pub(crate) fn joined(configs: &[Config]) -> Result<Vec<Communicator>> {
    let id = UniqueId::generate_local(&configs[0])?;
    let n = configs.len() as u32;
    let join = |(rank, config): (u32, &Config)| {
        let (id, config) = (id.clone(), config.clone());
        std::thread::spawn(move || Communicator::init_rank(&id, Rank(rank), n, &config))
    };
    let joining: Vec<_> = (0..).zip(configs).map(join).collect();
    joining.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Runs `body` as every rank of a communicator, `each` of them as threads of one process; the first are in this one, of
/// a test that is alone.
pub(crate) fn in_processes(
    (processes, each): (u32, u32),
    config: &Config,
    body: impl Fn(Communicator) -> Result<()> + Sync,
) {
    let run = |id: &str, process: u32| -> Vec<Result<()>> {
        let rank = |rank: u32| {
            body(Communicator::init_rank(&id.parse().unwrap(), Rank(rank), processes * each, config)?)
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                (0..each).map(|one| scope.spawn(move || rank(process * each + one))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    if let (Ok(id), Ok(process)) = (std::env::var(ID), std::env::var(PROCESS)) {
        return run(&id, process.parse().unwrap()).into_iter().for_each(Result::unwrap);
    }
    let id = UniqueId::generate_local(config).unwrap().to_hex();
    let start = |process: u32| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &std::env::var(ALONE).unwrap(), "--nocapture"]).stdout(Stdio::null());
        command.env(ID, &id).env(PROCESS, process.to_string()).spawn().unwrap()
    };
    let others: Vec<Child> = (1..processes).map(start).collect();
    let outcomes = run(&id, 0);
    for mut other in others {
        assert!(other.wait().unwrap().success(), "ranks failed, and those here say {outcomes:?}");
    }
    outcomes.into_iter().for_each(Result::unwrap);
}

/// A stream of device `ordinal` that can be captured, as ccl sees it and as the driver does.
pub(crate) fn stream(fake: &Fake, config: &Config, ordinal: u32) -> (Stream, ccl_cuda::Stream) {
    let device = &fake.driver.devices().unwrap()[ordinal as usize];
    let context = ccl_cuda::Context::primary(device).unwrap();
    let own = ccl_cuda::Stream::new(&context, 0).unwrap();
    // SAFETY: callers keep both as long as either.
    #[allow(unsafe_code)]
    let seen = unsafe { Stream::cuda(config, ordinal, own.raw()) }.unwrap();
    (seen, own)
}

fn path() -> PathBuf {
    program::fake_driver()
}

const ID: &str = "CCL_TEST_ID";
const PROCESS: &str = "CCL_TEST_PROCESS";
const ALONE: &str = "CCL_TEST_ALONE";
const DONE: &str = "done alone";
const LIMIT_S: u64 = 100;
