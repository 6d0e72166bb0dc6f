//! Builds plugins as they are made for NCCL, for the tests of whoever loads them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The file of a plugin of one version; `flags` are for the compiler.
pub fn toy(name: &str, version: u32, flags: &[&str]) -> String {
    toy_of_versions(name, &[version], flags)
}

/// The file of a plugin with a table for each of these versions, `lib<name>.so`.
pub fn toy_of_versions(name: &str, versions: &[u32], flags: &[&str]) -> String {
    of_versions(("toy_net.c", "NET_VERSION"), name, versions, flags)
}

/// The file of a profiler of one version; `flags` are for the compiler.
pub fn profiler(name: &str, version: u32, flags: &[&str]) -> String {
    profiler_of_versions(name, &[version], flags)
}

/// The file of a profiler with a table for each of these versions, `lib<name>.so`.
pub fn profiler_of_versions(name: &str, versions: &[u32], flags: &[&str]) -> String {
    of_versions(("toy_profiler.c", "PROFILER_VERSION"), name, versions, flags)
}

fn of_versions((source, define): (&str, &str), name: &str, versions: &[u32], flags: &[&str]) -> String {
    let objects: Vec<PathBuf> = versions
        .iter()
        .map(|version| {
            let object = folder().join(format!("{name}-{version}.o"));
            let define = format!("-D{define}={version}");
            let source = plugins().join("nccl/tests/plugins").join(source);
            cc(&[&["-c", &define], flags].concat(), &[source], &object);
            object
        })
        .collect();
    link(name, &objects)
}

/// The file `lib<name>.so` of sources and objects.
pub fn link(name: &str, parts: &[PathBuf]) -> String {
    let file = folder().join(format!("lib{name}.so"));
    cc(&["-shared"], parts, &file);
    file.to_str().unwrap().to_string()
}

/// A C source of these lines.
pub fn source(name: &str, lines: &str) -> PathBuf {
    let file = folder().join(format!("{name}.c"));
    std::fs::write(&file, lines).unwrap();
    file
}

/// Where plugins of the repository lie.
pub fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins")
}

/// Calls a function that a plugin exports, such as `toy_live` or `toy_inits`, of one version.
pub fn ask(file: &str, function: &str, version: u32) -> i32 {
    exported::<extern "C" fn() -> i32, _>(file, function, version, |function| function())
}

/// The same with a number: `toy_events`, `toy_states`, `toy_lasting` or `toy_ask` of a profiler.
pub fn tell(file: &str, function: &str, version: u32, number: i32) -> i32 {
    exported::<extern "C" fn(i32) -> i32, _>(file, function, version, |function| function(number))
}

/// Panics if a profiler noted anything wrong, or has anything left.
pub fn is_content(file: &str, version: u32) {
    let words =
        exported::<extern "C" fn() -> *const std::ffi::c_char, _>(file, "toy_words", version, |function| {
            // SAFETY: a text that ends in NUL, which nobody writes any more.
            unsafe { std::ffi::CStr::from_ptr(function()) }.to_string_lossy().into_owned()
        });
    assert_eq!((ask(file, "toy_wrong", version), &*words), (0, ""), "version {version}: {file}");
    assert_eq!(ask(file, "toy_live", version), 0, "version {version} has something left: {file}");
}

/// `F` is what `toy_net.c` or `toy_profiler.c` declares.
fn exported<F: Copy, R>(file: &str, function: &str, version: u32, call: impl FnOnce(F) -> R) -> R {
    // SAFETY: a library that is loaded, or whose initialisers do nothing.
    let library = unsafe { libloading::Library::new(file) }.unwrap();
    let name = format!("{function}_v{version}");
    // SAFETY: declared so, by the contract of this function.
    let function = *unsafe { library.get::<F>(name.as_bytes()) }.unwrap();
    call(function)
}

fn cc(flags: &[&str], parts: &[PathBuf], output: &Path) {
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-fvisibility=hidden"];
    let mut cc = Command::new("cc");
    cc.args(strict).args(flags).arg("-I").arg(plugins().join("include")).args(parts).arg("-o").arg(output);
    let status = cc.status().expect("these tests need a C compiler named cc");
    assert!(status.success(), "{cc:?}");
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The file of an env plugin with a table for each of these versions, named `Toy<version>`.
pub fn toy_env(name: &str, versions: &[u32], flags: &[&str]) -> String {
    let object = |version: &u32| {
        let object = folder().join(format!("{name}-{version}.o"));
        let (version, called) =
            (format!("-DENV_VERSION={version}"), format!("-DVERSIONED_NAME=\"Toy{version}\""));
        let source = plugins().join("nccl/tests/plugins/toy_env.c");
        cc(&[&["-c", &version, &called], flags].concat(), &[source], &object);
        object
    };
    link(name, &versions.iter().map(object).collect::<Vec<_>>())
}
