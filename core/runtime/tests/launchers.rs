//! Exchanges under real launchers: this test program starts itself under them.
//!
//! A launcher that is not installed is named on standard error, and its test passes without having run.

use std::env;
use std::io::Write as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use ccl::Rank;
use ccl::bootstrap::store::exchange_id;
use ccl::config::Config;
use ccl::discover::launcher::Job;

const ROUNDS: &str = "CCL_TEST_ROUNDS";

/// What each rank does. Not a test by itself.
#[test]
fn rank() {
    let Ok(rounds) = env::var(ROUNDS) else { return };
    let config = Config::load().unwrap();
    let job = Job::discover(&config).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    for round in 0..rounds.parse().unwrap() {
        let make = || {
            assert_eq!(job.rank, Rank(0));
            Ok([round; 128])
        };
        match exchange_id(&job, &config, deadline, make) {
            Ok(id) => println!("\nrank {} of {} has {}", job.rank, job.nranks, id[127]),
            Err(error) => println!("\nrank {} of {} failed: {error}", job.rank, job.nranks),
        }
    }
    // Ranks end at different times: a launcher that takes one's end for a crash would kill the others.
    std::thread::sleep(Duration::from_millis(100) * job.rank.0);
    println!("\nrank {} ends", job.rank);
}

/// Runs `launcher` with its arguments and this program as the ranks; `None` if it is not there.
fn run(launcher: &str, arguments: &[&str], rounds: u8, vars: &[(&str, &str)]) -> Option<String> {
    let mut command = Command::new(launcher);
    command.args(arguments).arg(env::current_exe().expect("Linux knows its path")).args([
        "--exact",
        "rank",
        "--nocapture",
    ]);
    command.env(ROUNDS, rounds.to_string()).envs(vars.iter().copied());
    match command.output() {
        Ok(Output { status, stdout, stderr }) => {
            let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            assert!(status.success(), "{launcher}: {text}");
            Some(text)
        }
        Err(error) => {
            // Past the test's captured output: a test that did not run must not look like one that did.
            let _ = writeln!(
                std::io::stderr(),
                "\nSKIPPED launchers: {launcher} cannot be started ({error}); install it to test this launcher"
            );
            None
        }
    }
}

fn assert_all(text: &str, nranks: u8, rounds: u8) {
    for rank in 0..nranks {
        for round in 0..rounds {
            let line = format!("rank {rank} of {nranks} has {round}");
            // Launchers put what ranks write next to each other as it comes, not line by line.
            assert!(text.contains(&line), "{line}: {text}");
        }
        let line = format!("rank {rank} ends");
        assert!(text.contains(&line), "{line}: {text}");
    }
}

#[test]
fn hydra() {
    if let Some(text) = run("mpiexec.mpich", &["-n", "3"], 1, &[]) {
        assert_all(&text, 3, 1);
    }
}

#[test]
fn hydra_serves_further_exchanges_on_one_node() {
    if let Some(text) = run("mpiexec.mpich", &["-n", "3"], 3, &[("CCL_SECRET", "hunter2")]) {
        assert_all(&text, 3, 3);
    }
}

#[test]
fn open_mpi() {
    let arguments = ["--allow-run-as-root", "--oversubscribe", "-n", "3"];
    if let Some(text) = run("mpirun.openmpi", &arguments, 2, &[]) {
        assert_all(&text, 3, 2);
    }
}

#[test]
fn any_launcher_with_a_directory() {
    let folder = env::temp_dir().join(format!("ccl-launchers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let store = format!("file:{}", folder.display());
    if let Some(text) = run("mpiexec.mpich", &["-n", "2"], 2, &[("CCL_STORE", &store)]) {
        assert_all(&text, 2, 2);
    }
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn plain_processes_of_one_shell() {
    let script = "for rank in 1 2 0; do CCL_RANK=$rank \"$0\" \"$@\" & done; wait";
    let vars = [("CCL_NRANKS", "3"), ("CCL_STORE", "local")];
    if let Some(text) = run("sh", &["-c", script], 2, &vars) {
        assert_all(&text, 3, 2);
    }
}
