//! The programs as users run them: the binary `ccl` and the plugin of the socket network.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The binary `ccl`, built like the calling test; the first call brings it up to date.
pub fn ccl() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built(&BUILT, "ccl", &["ccl-tools", PLUGIN])
}

/// The socket network as a shared object, built like the calling test.
pub fn socket_plugin() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built(&BUILT, "libccl_net_socket.so", &[PLUGIN])
}

/// The profiler that checks its host, built like the calling test.
pub fn checking_profiler() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built(&BUILT, "examples/libchecking.so", &["ccl-tests", "--example=checking"])
}

/// The profiler to copy from, built like the calling test.
pub fn example_profiler() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built(&BUILT, "libccl_profiler_example.so", &["ccl-profiler-example"])
}

/// The network to copy from, built like the calling test.
pub fn example_network() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built(&BUILT, "libccl_net_example.so", &["ccl-net-example"])
}

/// The CUDA driver without a device behind it, built like the calling test.
pub fn fake_driver() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built(&BUILT, "examples/libccl_cuda_fake_driver.so", &["ccl-cuda", "--example=ccl_cuda_fake_driver"])
}

/// The programs of the suite for devices, built like the calling test: `ccl`, `facts` and `contract`.
pub fn gpu_suite() -> [PathBuf; 3] {
    static FACTS: OnceLock<PathBuf> = OnceLock::new();
    static CONTRACT: OnceLock<PathBuf> = OnceLock::new();
    [
        ccl(),
        built(&FACTS, "examples/facts", &["ccl-tools", "--example=facts"]),
        built(&CONTRACT, "examples/contract", &["ccl-cuda", "--example=contract"]),
    ]
}

/// The binary `ccl`, built for release; brought up to date by each call.
pub fn released_ccl() -> PathBuf {
    let target = target_folder();
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--quiet", "-p", "ccl-tools", "--bins"]);
    succeeds(cargo.arg("--target-dir").arg(&target));
    target.join("release/ccl")
}

/// `cargo test` of this workspace with these arguments, in the profile of the calling test; ended after `limit_s`
/// seconds. It inherits nothing that ccl reads.
pub fn cargo_test(limit_s: u64, arguments: &[&str]) -> Command {
    let cargo = cargo();
    let mut command = command(limit_s, cargo.get_program());
    cargo.get_envs().filter(|(_, value)| value.is_none()).for_each(|(name, _)| _ = command.env_remove(name));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).arg("test");
    command.args((profile_folder().ends_with("release")).then_some("--release")).args(arguments);
    command
}

/// A command that is ended after `limit_s` seconds and inherits nothing that ccl or a launcher reads.
pub fn command(limit_s: u64, program: impl AsRef<std::ffi::OsStr>) -> Command {
    // With the signal it ends as `timeout` does, with 124, and its own children end with it.
    let mut command = Command::new("timeout");
    command.arg("--kill-after=10").arg(limit_s.to_string()).arg(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| speaks_of_ranks(name)) {
        command.env_remove(name);
    }
    command
}

/// Whether `program` can be started.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The output of a command that must succeed.
///
/// # Panics
///
/// It does not start, or ends with another status than 0.
#[track_caller]
pub fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(output.status.success(), "{command:?}\n{}: {}", output.status, both(&output));
    output
}

/// What a command printed, both streams.
pub fn both(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).join("\n")
}

/// A file among the binaries of the profile that the calling test was built with, once it is up to date.
fn built(known: &OnceLock<PathBuf>, name: &str, packages: &[&str]) -> PathBuf {
    let path = known.get_or_init(|| {
        let folder = profile_folder();
        // Cargo itself would build it again, with the features that it has without the other crates.
        if !is_fresh(&folder.join(name)) {
            build(&folder, packages);
        }
        folder.join(name)
    });
    path.clone()
}

/// The folder that cargo builds in.
pub(crate) fn target_folder() -> PathBuf {
    profile_folder().parent().expect("a profile's folder lies in cargo's").to_owned()
}

/// The folder of the profile that the calling test was built with.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a file");
    test.ancestors().nth(2).expect("tests lie in PROFILE/deps").to_owned()
}

/// Whether a binary is newer than the sources that cargo lists beside it.
fn is_fresh(binary: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let Ok(list) = std::fs::read_to_string(binary.with_extension("d")) else { return false };
    let sources = list.trim().split_once(": ").map_or("", |(_, sources)| sources).split(' ');
    modified(binary).is_some_and(|built| {
        sources.map(|source| modified(Path::new(source))).all(|changed| changed.is_some_and(|at| at <= built))
    })
}

fn build(folder: &Path, packages: &[&str]) {
    let profile = folder.file_name().and_then(|name| name.to_str()).expect("profiles have ASCII names");
    let mut cargo = cargo();
    cargo.args(["build", "--quiet"]);
    for package in packages {
        // What begins with dashes says which part of the package before it.
        cargo.args((!package.starts_with("--")).then_some("-p")).arg(package);
    }
    cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
    succeeds(cargo.arg("--target-dir").arg(folder.parent().expect("a profile's folder lies in cargo's")));
}

/// Cargo in this workspace, without the variables that it set for this test only and that would make
/// it build more than it must.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_this_test(name)) {
        cargo.env_remove(name);
    }
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

fn is_of_this_test(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
        .iter()
        .any(|start| name.starts_with(start))
}

fn speaks_of_ranks(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    let starts =
        ["CCL_", "NCCL_", "LOCAL_", "MASTER_", "OMPI_", "PMI", "MPI_", "MV2_", "JSM_", "FLUX_", "SLURM_"];
    ["RANK", "WORLD_SIZE"].contains(&&*name) || starts.iter().any(|start| name.starts_with(start))
}

const PLUGIN: &str = "ccl-net-socket-plugin";
