//! The log of a process that has no subscriber of its own: one per process, so one test.

use ccl::config::{Config, Level, Subsystems};
use ccl::log::{Receiver, change, install};

#[test]
fn the_first_install_writes_to_the_file_and_later_ones_do_nothing() {
    let pattern = std::env::temp_dir().join("ccl-log-test.%h.%p");
    let config = |level: &str| {
        Config::from_vars([("CCL_DEBUG", level), ("CCL_DEBUG_FILE", pattern.to_str().unwrap())]).unwrap()
    };
    assert_eq!(install(&config("INFO")), Ok(Receiver::Ccl));
    tracing::info!(target: "ccl::comm", rank = 1, "heard");
    tracing::trace!(target: "ccl::comm", "not heard");
    tracing::error!(target: "tokio", "not ours");
    assert_eq!(install(&config("TRACE")), Ok(Receiver::Ccl));
    tracing::trace!(target: "ccl::comm", "not heard either");
    assert!(change(Level::Trace, Subsystems::ALL));
    tracing::trace!(target: "ccl::comm", "heard later");

    let folder = std::env::temp_dir();
    let suffix = format!(".{}", std::process::id());
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("ccl-log-test.") && name.ends_with(&suffix)
    });
    let file = file.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(text.contains("CCL version "), "{text}");
    assert!(text.contains("[1] CCL INFO heard\n"), "{text}");
    assert!(text.contains("CCL_DEBUG set by CCL_DEBUG in the environment to INFO."), "{text}");
    assert!(text.contains("CCL TRACE heard later\n"), "{text}");
    assert!(!text.contains("not heard") && !text.contains("not ours"), "{text}");
}
