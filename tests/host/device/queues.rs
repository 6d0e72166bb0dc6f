//! What ranks say if the streams of their process may share queues of a device.

use std::path::{Path, PathBuf};

use ccl::{Communicator, Config, Rank, Request, Result, local};

use super::alone::{alone, in_processes, settings};

#[test]
fn ranks_say_once_for_each_device_that_queues_are_few() {
    let test = "ranks_say_once_for_each_device_that_queues_are_few";
    alone(module_path!(), test, &[(QUEUES, "8")], |fake| {
        let (config, log) = logged(test, "0");
        let (other, _) = logged(test, "1");
        join(&config, 3);
        assert_eq!(warnings(&log), [""; 0], "the default stream, that of copies and two for each rank");
        join(&config, 4);
        let first = "ranks 0-3 share device 0 as threads of one process, whose streams there need 10 queues and have 8";
        assert!(matches!(&warnings(&log)[..], [one] if one.contains(first)), "{:?}", warnings(&log));
        assert!(warnings(&log)[0].contains("set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts"));
        join(&config, 5);
        assert_eq!(warnings(&log).len(), 1, "{:?}", warnings(&log));
        join(&other, 4);
        assert!(
            matches!(&warnings(&log)[..], [_, one] if one.contains("share device 1")),
            "{:?}",
            warnings(&log)
        );
        fake.assert_nothing_is_left("few queues");
    });
}

#[test]
fn streams_of_messages_and_of_all_communicators_count() {
    let test = "streams_of_messages_and_of_all_communicators_count";
    alone(module_path!(), test, &[(QUEUES, "12")], |_| {
        let (config, log) = logged(test, "0");
        local::run_with(&config, 4, |comm| exchange(&comm, 0)).unwrap();
        assert_eq!(warnings(&log), [""; 0], "a stream for each end of the messages between two ranks");
        local::run_with(&config, 2, |comm| {
            let next = comm.split(Some(0), 0)?.unwrap();
            exchange(&comm, 0)?;
            exchange(&next, 1)
        })
        .unwrap();
        let said = "ranks 0-1 share device 0 as threads of one process, whose streams there need 13 queues and have 12";
        assert!(matches!(&warnings(&log)[..], [one] if one.contains(said)), "{:?}", warnings(&log));
    });
}

#[test]
fn processes_have_queues_of_their_own() {
    let test = "processes_have_queues_of_their_own";
    alone(module_path!(), test, &[(QUEUES, "5")], |_| {
        let (config, log) = logged(test, "0");
        in_processes((2, 2), &config, |comm| comm.barrier());
        let two = |line: &str| line.contains("ranks 0-1 ") || line.contains("ranks 2-3 ");
        let said = |line: &str| two(line) && line.contains("need 6 queues and have 5");
        assert!(matches!(&warnings(&log)[..], [one] if said(one)), "{:?}", warnings(&log));
    });
}

/// Settings of ranks that write what they say to a file of this process, and the file.
fn logged(test: &str, device: &'static str) -> (Config, PathBuf) {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.{}", std::process::id()));
    (settings(&[("CCL_DEVICE", device), ("CCL_DEBUG_FILE", log.to_str().unwrap())]), log)
}

fn warnings(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().filter(|line| line.contains("queues")).map(str::to_owned).collect()
}

fn join(config: &Config, n: u32) {
    local::run_with(config, n, |comm| comm.barrier()).unwrap();
}

/// A message from rank 0 to rank 1, or back as well.
fn exchange(comm: &Communicator, back: u32) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)].into_iter().take(1 + back as usize) {
        let mut values = [7i32; 10];
        match comm.rank() {
            rank if rank == Rank(from) => comm.run(Request::send(&values, Rank(to)))?,
            rank if rank == Rank(to) => comm.run(Request::recv(&mut values, Rank(from)))?,
            _ => {}
        }
    }
    comm.barrier()
}

const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
