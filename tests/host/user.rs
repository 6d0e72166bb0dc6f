//! Programs of the user's, from files, on real ranks.

use std::fs;
use std::path::PathBuf;

use ccl::{Algorithm, Collective, Config, Dtype, ReduceOp, local};

use crate::matrix::{config, sweep_of};

#[test]
fn the_manual_s_program_reduces_on_real_ranks() {
    let file = File::new("hub", &from_manual());
    for settings in [
        vec![("CCL_ALGO", "allreduce:user")],
        vec![("CCL_ALGO", "allreduce:user"), ("CCL_DIRECT_BYTES", "1")],
        vec![("CCL_ALGO", "allreduce:user"), ("CCL_SHM_DISABLE", "1")],
        vec![("CCL_ALGO", "allreduce:user"), ("CCL_BUFFSIZE", "8K"), ("CCL_SLOTS", "2")],
    ] {
        let config = file.config(&settings);
        let chosen = local::run_with(&config, 3, |comm| comm.choice(Collective::AllReduce, 64));
        assert!(chosen.unwrap().iter().all(|choice| choice.algorithm == Algorithm::User));
        for n in [3, 4, 6] {
            sweep_of(&config, n, &[0, 1, 1031, 40_000], &[Dtype::F32, Dtype::I8], &[Collective::AllReduce]);
        }
    }
}

/// Not forced, it competes, and loses to one message.
#[test]
fn a_program_competes() {
    let file = File::new("competing", &from_manual());
    let chosen = local::run_with(&file.config(&[]), 4, |comm| comm.choice(Collective::AllReduce, 64));
    assert!(chosen.unwrap().iter().all(|choice| choice.algorithm == Algorithm::OneShot));
}

#[test]
fn a_broken_program_never_runs() {
    let cases = [
        (from_manual().replace("2..n-1", "2..n"), "waits for 3 to send"),
        (from_manual().replace("recv_reduce_copy post ", "recv_reduce_copy "), "in: recv"),
        (from_manual().replace("chunks 1", "chunks one"), "line 3: expected"),
    ];
    for (index, (text, expected)) in cases.iter().enumerate() {
        let file = File::new(&format!("broken{index}"), text);
        let error = local::run_with(&file.config(&[]), 4, |comm| {
            let mut one = [1f32];
            comm.all_reduce_in_place(&mut one, ReduceOp::Sum)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("CCL_ALGO_FILE") || error.contains("expected a program"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("ccl-{name}-{}.txt", std::process::id()));
        fs::write(&path, text).unwrap();
        File(path)
    }

    fn config(&self, settings: &[(&'static str, &str)]) -> Config {
        let own = [("CCL_ALGO_FILE", self.0.to_str().unwrap())];
        config(&[settings, &own].concat())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The indented block of the manual's chapter on programs.
fn from_manual() -> String {
    let manual = include_str!("../../docs/manual/programs.md");
    let start = manual.find("    program all_reduce.hub\n").unwrap();
    manual[start..]
        .lines()
        .take_while(|line| line.starts_with("    "))
        .map(|line| format!("{line}\n"))
        .collect()
}
