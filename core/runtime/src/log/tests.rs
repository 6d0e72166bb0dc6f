use std::sync::{Arc, Mutex};

use super::*;
use crate::config::{Kind, Subsystem};

/// A sink whose content can be looked at.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }

    /// What follows "CCL" on each line.
    fn texts(&self) -> Vec<String> {
        self.lines().iter().map(|line| line.split_once(" CCL ").unwrap().1.to_owned()).collect()
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn with_log<T>(level: Level, subsystems: &str, work: impl FnOnce() -> T) -> Page {
    let page = Page::default();
    let subsystems = Subsystems::parse(subsystems).unwrap();
    let writer = Writer::new(level, subsystems, Box::new(page.clone()));
    dispatcher::with_default(&dispatch(writer), work);
    page
}

#[test]
fn lines_have_host_process_thread_rank_and_text() {
    let page = with_log(Level::Info, "INIT", || {
        tracing::info!(target: "ccl::comm", rank = 3, "joined {} ranks", 4);
        tracing::warn!(target: "ccl::comm", peer = 2, what = "late", "slow");
    });
    let start = format!("{}:{}:", host_name(), process::id());
    let lines = page.lines();
    assert!(lines[0].starts_with(&start), "{lines:?}");
    assert!(lines[0].ends_with(" [3] CCL INFO joined 4 ranks"), "{lines:?}");
    assert!(lines[1].ends_with(" [-] CCL WARN slow peer=2 what=late"), "{lines:?}");
}

#[test]
fn the_rank_of_a_span_is_that_of_its_events() {
    let page = with_log(Level::Info, "INIT", || {
        let _outer = tracing::info_span!(target: "ccl::comm", "communicator", rank = 7).entered();
        let _inner = tracing::info_span!(target: "ccl::comm", "phase").entered();
        tracing::info!(target: "ccl::comm", "hello");
    });
    assert!(page.lines()[0].contains("[7] CCL INFO hello"), "{:?}", page.lines());
}

#[test]
fn levels_and_subsystems_filter() {
    let work = || {
        tracing::trace!(target: "ccl::transport::net", "trace");
        tracing::info!(target: "ccl::transport::net", "net");
        tracing::info!(target: "ccl::comm", "init");
        tracing::warn!(target: "ccl::transport::net", "warn");
        tracing::error!(target: "someone::else", "foreign");
    };
    assert_eq!(with_log(Level::Warn, "ALL", work).texts(), ["WARN warn"]);
    assert_eq!(with_log(Level::Info, "NET", work).texts(), ["INFO net", "WARN warn"]);
    assert_eq!(with_log(Level::Info, "^NET", work).texts(), ["INFO init", "WARN warn"]);
    assert_eq!(with_log(Level::Trace, "ALL", work).texts().len(), 4);
    assert_eq!(with_log(Level::Version, "ALL", work).texts().len(), 0);
}

#[test]
fn the_level_changes_at_run_time() {
    let say = || tracing::info!(target: "ccl::transport::shm", "said");
    let page = with_log(Level::Warn, "ALL", || {
        assert_eq!(receiver(), Receiver::Ccl);
        say();
        assert!(change(Level::Info, Subsystems::ALL));
        say();
        assert!(change(Level::Info, Subsystems::parse("NET").unwrap()));
        say();
    });
    assert_eq!(page.texts(), ["INFO said"]);
}

#[test]
fn a_programs_own_subscriber_is_left_alone() {
    let own = Dispatch::new(Registry::default());
    dispatcher::with_default(&own, || {
        assert_eq!(receiver(), Receiver::Program);
        let config =
            Config::from_vars([("CCL_DEBUG", "TRACE"), ("CCL_DEBUG_FILE", "/nonexistent/x")]).unwrap();
        assert_eq!(install(&config), Ok(Receiver::Program));
        assert!(!change(Level::Trace, Subsystems::ALL));
    });
}

#[test]
fn settings_are_announced_without_secrets() {
    let vars =
        [("CCL_SECRET", "hunter2"), ("NCCL_ALGO", "Ring"), ("CCL_ALGOO", "x"), ("NCCL_NVLS_NCHANNELS", "1")];
    let config = Config::from_vars(vars).unwrap();
    let texts = with_log(Level::Info, "ENV", || announce(&config)).texts();
    let has = |text: &str| texts.iter().any(|line| line.contains(text));
    assert!(
        has("WARN CCL_ALGOO in the environment is not a setting of ccl; did you mean CCL_ALGO?"),
        "{texts:?}"
    );
    assert!(has("INFO CCL_ALGO set by NCCL_ALGO in the environment to ring."), "{texts:?}");
    assert!(has("NCCL_NVLS_NCHANNELS has no meaning"), "{texts:?}");
    assert!(!has("hunter2"), "{texts:?}");
}

#[test]
fn the_version_is_greeted_with() {
    for (level, count) in [(Level::None, 0), (Level::Version, 1), (Level::Warn, 0), (Level::Trace, 1)] {
        let page = Page::default();
        Writer::new(level, Subsystems::ALL, Box::new(page.clone())).greet();
        assert_eq!(page.lines().len(), count, "{level:?}");
    }
}

#[test]
fn file_names_take_host_and_process() {
    let name = |pattern: &str| file_name(Path::new(pattern), "a/b%c", 42).display().to_string();
    assert_eq!(name("/tmp/log.%h.%p.txt"), "/tmp/log.a-b-c.42.txt");
    assert_eq!(name("100%%-%x-%"), "100%-%x-%");
    let error = create(Path::new("/nonexistent/log")).unwrap_err();
    assert!(error.cause().contains("/nonexistent/log"), "{error}");
}

#[test]
fn every_subsystem_of_the_settings_has_a_word() {
    assert_eq!(Subsystem::Bootstrap.word(), "BOOTSTRAP");
}
