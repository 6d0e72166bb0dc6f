//! Launchers, with no variable of ccl's own: each makes `ccl perf` four ranks of one communicator.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use ccl_tests::{program, skip};

#[test]
fn open_mpi() {
    launch("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"]);
}

#[test]
fn mpich() {
    launch("mpiexec.mpich", &[]);
}

#[test]
fn the_variables_of_torchrun() {
    let _turn = super::turn();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ranks = (0..RANKS).map(|rank| {
        let mut command = perf(program::command(LIMIT_S, program::ccl()));
        let (rank, size) = (rank.to_string(), RANKS.to_string());
        command.envs([("RANK", &rank), ("LOCAL_RANK", &rank), ("WORLD_SIZE", &size)]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    let ranks: Vec<_> = ranks.collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", program::both(output));
    }
    assert_four_ranks(&outputs[0]);
    assert!(outputs[1..].iter().all(|output| output.stdout.is_empty()), "only rank 0 reports");
}

fn launch(launcher: &str, options: &[&str]) {
    if !program::installed(launcher) {
        return skip(launcher, "it is not installed");
    }
    let ccl = program::ccl();
    let _turn = super::turn();
    let mut command = program::command(LIMIT_S, launcher);
    command.args(options).args(["-n", &RANKS.to_string()]).arg(ccl);
    assert_four_ranks(&program::succeeds(&mut perf(command)));
}

fn perf(mut command: Command) -> Command {
    command.args(["perf", "all_reduce", "-b", "8", "-e", "4K", "-f", "8", "-t", "0.01"]);
    command
}

/// The table is of four ranks and says that nothing is wrong; once, or there were several communicators.
fn assert_four_ranks(output: &Output) {
    let text = program::both(output);
    for part in ["# nRanks 4 ", "#  Rank  3 ", "# Out of bounds values : 0 OK"] {
        assert_eq!(text.matches(part).count(), 1, "`{part}` in\n{text}");
    }
    let rows =
        text.lines().filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit()));
    assert_eq!(rows.filter(|row| row.contains(" float ")).count(), 4, "{text}");
}

const RANKS: u32 = 4;
const LIMIT_S: u64 = 120;
