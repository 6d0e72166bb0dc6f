//! `tests/gpu/run` without a device: every step runs, smaller, or says why it does not; what is wrong is seen.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use ccl_tests::{program, skip};
use serde_json::Value;

/// The suite's programs in a folder of their own; nothing where there is no Python.
fn folder(test: &str) -> Option<PathBuf> {
    if !program::installed("python3") {
        skip(test, "no python3");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    for binary in program::gpu_suite() {
        let link = folder.join(binary.file_name().unwrap());
        let _ = std::fs::remove_file(&link);
        symlink(&binary, &link).unwrap();
    }
    Some(folder)
}

/// A dry run with these programs: what it said, and its report.
fn run(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> (Output, Value) {
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/run");
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda/interpret.cu");
    let report = folder.join("gpu.json");
    let _ = std::fs::remove_file(&report);
    let mut command = program::command(120, "python3");
    command.args([suite, "--dry", "--image", kernels, "--driver"]).arg(program::fake_driver());
    command.arg("--bin").arg(folder).args(arguments).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = std::fs::read_to_string(&report).unwrap_or_else(|_| panic!("{}", program::both(&output)));
    (output, serde_json::from_str(&text).unwrap())
}

fn dry(test: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Option<(Output, Value)> {
    folder(test).map(|folder| run(&folder, variables, arguments))
}

/// Steps with this status, by name.
fn with(report: &Value, status: &str) -> Vec<String> {
    let steps = report["steps"].as_array().unwrap().iter();
    let those = steps.filter(|step| step["status"] == status);
    those.map(|step| step["step"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_step_runs_or_says_why_not() {
    let Some((output, report)) = dry("every_step_runs_or_says_why_not", &[], &[]) else { return };
    let said = program::both(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(report["passed"], true, "{said}");
    assert!(with(&report, "passed").len() >= 28, "{said}");
    assert!(report["figures"].as_array().unwrap().len() >= 60, "{said}");
    for step in report["steps"].as_array().unwrap() {
        if step["status"] == "not run" {
            let why = step["why"].as_str().unwrap();
            assert!(why.starts_with("a dry run"), "{step}");
        }
    }
    // A dry run judges no time.
    for goal in report["goals"].as_array().unwrap() {
        assert_eq!(goal["status"], "not judged", "{goal}");
    }
    assert!(said.contains("no figure is one of a device"), "{said}");
}

#[test]
fn a_call_of_the_driver_that_fails_is_seen() {
    let planted = [("CCL_FAKE_FAIL", "cuLaunchKernelEx:3:700")];
    let test = "a_call_of_the_driver_that_fails_is_seen";
    let Some((output, report)) = dry(test, &planted, &["--only", "2 ranks in threads"]) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", program::both(&output));
    assert_eq!((&report["passed"], with(&report, "FAILED").len()), (&false.into(), 1));
}

#[test]
fn several_devices_are_tried_where_there_are_any() {
    let test = "several_devices_are_tried_where_there_are_any";
    let only = ["--only", "several devices"];
    let Some((output, report)) = dry(test, &[("CCL_FAKE_DEVICES", "3")], &only) else { return };
    let said = program::both(&output);
    assert!(output.status.success(), "{said}");
    // A rank on each of 2 and of 3, and two on each of two, in threads and in processes; windows; channels; the rest.
    assert_eq!(with(&report, "passed").len(), 13, "{said}");
    assert_eq!(with(&report, "not run"), ["several devices, NCCL"], "{said}");
    let rows = report["figures"].as_array().unwrap();
    let of = |word: &str| rows.iter().filter(|row| row["figure"].as_str().unwrap().contains(word)).count();
    assert!(of("by multicast") > 0 && of("by multicast") == of("over edges"), "{said}");
    assert!(rows.iter().all(|row| row["ranks"] == 2 || row["ranks"] == 3), "{said}");
}

#[test]
fn that_there_is_one_device_only_is_said_aloud() {
    let test = "that_there_is_one_device_only_is_said_aloud";
    let only = ["--only", "several devices"];
    let Some((output, report)) = dry(test, &[("CCL_FAKE_DEVICES", "1")], &only) else { return };
    let said = program::both(&output);
    assert_eq!((with(&report, "not run").len(), with(&report, "passed").len()), (1, 0), "{said}");
    let why = "the machine has one device: nothing between devices was checked";
    assert_eq!(report["steps"][0]["why"], why);
    assert_eq!(report["warnings"][0], why);
    assert!(report["verdict"].as_str().unwrap().contains(why), "{said}");
    assert!(said.contains(&format!("!!! {why}")), "{said}");
}

/// Two devices share nothing through multicast memory, and where one that offers it gets nothing, the step fails.
#[test]
fn what_multicast_memory_does_not_do_is_seen() {
    let test = "what_multicast_memory_does_not_do_is_seen";
    let only = ["--only", "several devices, multicast"];
    let Some((output, report)) = dry(test, &[("CCL_FAKE_DEVICES", "2")], &only) else { return };
    let why = report["steps"][0]["why"].as_str().unwrap();
    assert!(why.contains("from 3 ranks on, and the machine has 2 devices"), "{}", program::both(&output));
    let deaf = [("CCL_FAKE_DEVICES", "4"), ("CCL_FAKE_DEAF_DEVICE", "2")];
    let Some((output, report)) = dry(test, &deaf, &only) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", program::both(&output));
    let why = report["steps"][0]["why"].as_str().unwrap();
    assert!(why.contains("expected switch") && why.contains("has not come"), "{why}");
}

/// Only the driver knows whether there is a device: a container may have a `nvidia-smi` that does not work.
#[test]
fn what_describes_the_machine_may_be_missing() {
    let test = "what_describes_the_machine_may_be_missing";
    let Some(folder) = folder(test) else { return };
    let smi = folder.join("nvidia-smi");
    std::fs::write(&smi, "#!/bin/sh\necho no library >&2\nexit 12\n").unwrap();
    std::fs::set_permissions(&smi, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let (output, report) = run(&folder, &[("PATH", &path)], &["--only", "machine"]);
    assert!(output.status.success(), "{}", program::both(&output));
    assert!(report["facts"]["nvidia-smi"].as_str().unwrap().contains("no library"), "{report}");
}

/// Half of a line of an earlier call in the place of this one's, which calls of equal data would hide. It takes a rank that is
/// interrupted between the halves.
#[test]
fn a_line_that_is_torn_is_seen() {
    let planted = [("CCL_FAKE_PLANT", "4")];
    let only = ["--only", "a chain of calls by ll"];
    for _ in 0..20 {
        let Some((output, report)) = dry("a_line_that_is_torn_is_seen", &planted, &only) else { return };
        let said = program::both(&output);
        assert!(with(&report, "passed").contains(&"3 ranks, a chain of calls by ll128".to_owned()), "{said}");
        if with(&report, "FAILED") == ["3 ranks, a chain of calls by ll"] {
            assert_eq!(output.status.code(), Some(1), "{said}");
            return assert!(report["steps"][0]["why"].as_str().unwrap().contains("wrong elements"), "{said}");
        }
    }
    panic!("no torn line was seen");
}

#[test]
fn a_wrong_result_is_seen() {
    let stub = "#!/bin/sh\necho '{\"ok\": false, \"coll\": \"allreduce\", \"wrong\": 1}'\n";
    let test = "a_wrong_result_is_seen";
    let Some(folder) = folder(test) else { return };
    let ccl = folder.join("ccl");
    std::fs::remove_file(&ccl).unwrap();
    std::fs::write(&ccl, stub).unwrap();
    std::fs::set_permissions(&ccl, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (output, report) = run(&folder, &[], &["--only", "2 ranks in threads"]);
    let said = program::both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(report["steps"][0]["why"].as_str().unwrap().contains("results are wrong"), "{said}");
}

#[test]
fn kernels_may_lie_in_a_folder() {
    let test = "kernels_may_lie_in_a_folder";
    let Some(folder) = folder(test) else { return };
    let image = folder.join("kernels");
    // As an earlier run has left it.
    let _ = std::fs::remove_dir_all(&image);
    std::fs::create_dir_all(&image).unwrap();
    let write = |dtype: &str| {
        for kernels in ["interpret", "one_shot", "group"] {
            std::fs::write(image.join(format!("{kernels}.{dtype}.ptx")), ".version 7.0\n").unwrap();
        }
    };
    ["bytes", "f32", "u64", "f64", "bf16"].into_iter().for_each(write);
    // The step folds in int8, too.
    let arguments = ["--image", image.to_str().unwrap(), "--only", "2 ranks in threads"];
    let (output, report) = run(&folder, &[], &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", program::both(&output));
    let why = report["steps"][0]["why"].as_str().unwrap();
    assert!(why.contains(".i8.cubin, .fatbin or .ptx"), "{why}");
    write("i8");
    let (output, _) = run(&folder, &[], &arguments);
    assert!(output.status.success(), "{}", program::both(&output));
}

#[test]
fn without_a_device_nothing_else_is_tried() {
    let test = "without_a_device_nothing_else_is_tried";
    let Some(folder) = folder(test) else { return };
    let (output, report) = run(&folder, &[], &["--driver", "/nowhere/libcuda.so.1"]);
    assert_eq!(output.status.code(), Some(1), "{}", program::both(&output));
    assert_eq!(with(&report, "FAILED"), ["machine"]);
    assert_eq!(with(&report, "passed"), Vec::<String>::new());
}

#[test]
fn what_the_time_does_not_allow_is_not_run() {
    let test = "what_the_time_does_not_allow_is_not_run";
    let Some((output, report)) = dry(test, &[], &["--budget", "0.5"]) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", program::both(&output));
    assert!(with(&report, "not run").len() >= 20, "{}", program::both(&output));
    assert_eq!(with(&report, "passed"), Vec::<String>::new());
}

/// Ranks that share a device and a process load each image once: a second load would wait for a kernel that waits for it.
#[test]
fn ranks_of_a_process_load_kernels_once() {
    let planted = [("CCL_FAKE_FAIL", "cuModuleLoadData:2:700,cuModuleLoadDataEx:2:700")];
    let test = "ranks_of_a_process_load_kernels_once";
    let Some((output, report)) = dry(test, &planted, &["--only", "2 ranks in threads"]) else { return };
    assert_eq!(with(&report, "passed"), ["2 ranks in threads"], "{}", program::both(&output));
}
