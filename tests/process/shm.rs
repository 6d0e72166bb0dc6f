//! Hosts whose /dev/shm is tiny or cannot be written.

use std::process::Command;

use crate::pool::{self, Worker};

#[test]
fn a_tiny_dev_shm_is_enough() {
    within("a_tiny_dev_shm_is_enough", "size=64k");
}

#[test]
fn a_read_only_dev_shm_is_enough() {
    within("a_read_only_dev_shm_is_enough", "ro,size=4k");
}

/// What runs inside: four ranks that find /dev/shm as it was made, and leave it so.
#[test]
fn ranks_inside_a_mount_namespace() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    assert!(pool::shared_memory_files().is_empty());
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    for _ in 0..2 {
        pool::join(&mut workers.iter_mut().collect::<Vec<_>>(), "30s", "check");
        for worker in &workers {
            worker.until("leaving").unwrap();
            assert!(pool::shared_memory_files().is_empty());
        }
        for worker in &workers {
            assert_eq!(worker.result().1, Ok(()));
        }
    }
    workers.iter_mut().for_each(Worker::expect_nothing_left);
    assert!(pool::shared_memory_files().is_empty());
}

/// Runs the ranks in a mount namespace of their own, with /dev/shm mounted anew.
fn within(test: &str, options: &str) {
    let possible = Command::new("unshare").args(["-m", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return ccl_tests::skip(test, "expected root and unshare (util-linux)");
    }
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs -o {options} tmpfs /dev/shm && exec \"$0\" --exact \
         shm::ranks_inside_a_mount_namespace --nocapture"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && text.contains("mount:") {
        return ccl_tests::skip(test, &format!("expected leave to mount, found {text}"));
    }
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{text}");
    assert!(out.contains("1 passed"), "{out}");
}

const INSIDE: &str = "CCL_TEST_INSIDE";
