//! Ranks whose kernels NVRTC compiles: the driver without a device is also an NVRTC that compiles nothing.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ccl::{Addresses, Config, DeviceBuffer, Element, Error, ReduceOp, Request, Result, local};
use ccl_cuda::CaptureMode;
use ccl_tests::{program, skip};

use super::alone::{Fake, alone, settings, stream};

/// A folder for compiled kernels, empty, that processes of one test share.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Settings of ranks that have no image of any kernel.
fn compiling(nvrtc: &str, cache: &Path) -> Config {
    let (nvrtc, cache) = (nvrtc.to_owned().leak(), cache.to_str().unwrap().to_owned().leak());
    settings(&[("CCL_CUDA_IMAGE", ""), ("CCL_NVRTC_LIBRARY", nvrtc), ("CCL_KERNEL_CACHE", cache)])
}

fn with_nvrtc(cache: &Path) -> Config {
    compiling(program::fake_driver().to_str().unwrap(), cache)
}

/// Two ranks, each with a call of one kernel, of a dtype that only `CCL_KERNELS=all` embeds.
fn sum(config: &Config) -> Result<()> {
    sum_of(config, 1.0f64)
}

fn sum_of<T: Element + std::ops::Add<Output = T> + PartialEq + Debug>(config: &Config, one: T) -> Result<()> {
    local::run_with(config, 2, |comm| {
        let mut values = [one; 100];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [one + one; 100]);
        Ok(())
    })
    .map(drop)
}

fn embeds_all() -> bool {
    ccl::kernel_supply(&settings(&[("CCL_CUDA_IMAGE", "")]), None).why.contains("interpret.f64")
}

/// A test in a process of its own, unless the build embeds what it would see compiled.
fn compiling_alone(test: &str, more: &[(&str, &str)], body: impl FnOnce(&Fake)) {
    if embeds_all() {
        return skip(test, "this build embeds all kernels");
    }
    alone(module_path!(), test, more, body);
}

/// Every rank's error.
fn refused(config: &Config) -> Vec<Error> {
    let call = |comm: ccl::Communicator| comm.all_reduce_in_place(&mut [1.0f64; 100], ReduceOp::Sum);
    let outcomes = local::try_run_with(config, 2, call).unwrap();
    outcomes.into_iter().map(Result::unwrap_err).collect()
}

fn compiled(fake: &Fake) -> u64 {
    fake.calls("nvrtcCompileProgram")
}

/// Whether this process is the one for this of several cases.
fn is_set((name, value): (&str, &str)) -> bool {
    std::env::var(name).is_ok_and(|found| found == value)
}

fn entries(cache: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|file| file.extension().is_some_and(|ending| ending == "kernel")).collect()
}

#[test]
fn a_kernel_is_compiled_once_and_then_found() {
    compiling_alone("a_kernel_is_compiled_once_and_then_found", &[], |fake| {
        let cache = folder("compiled_once");
        let config = with_nvrtc(&cache);
        sum(&config).unwrap();
        assert_eq!((compiled(fake), entries(&cache).len()), (1, 1));
        fake.assert_nothing_is_left("compiling");
        sum(&config).unwrap();
        assert_eq!(compiled(fake), 1, "it was kept");
        for broken in [&b""[..], b"not whole"] {
            let before = compiled(fake);
            std::fs::write(&entries(&cache)[0], broken).unwrap();
            sum(&config).unwrap();
            assert_eq!(compiled(fake), before + 1, "it was dropped and made again");
            sum(&config).unwrap();
            assert_eq!(compiled(fake), before + 1);
        }
        let before = compiled(fake);
        sum(&compiling(program::fake_driver().to_str().unwrap(), Path::new("none"))).unwrap();
        assert_eq!(compiled(fake), before + 1, "nothing is kept");
        sum(&with_nvrtc(Path::new("/dev/null/kernels"))).unwrap();
        assert_eq!(compiled(fake), before + 2, "nothing can be kept");
        fake.assert_nothing_is_left("finding");
    });
}

#[test]
fn each_generation_gets_its_own_code_or_text() {
    let cases =
        [("86", "sm_86"), ("87", "sm_86"), ("90", "sm_90"), ("121", "sm_120"), ("110", "compute_100")];
    for (capability, target) in cases {
        let setting = [("CCL_FAKE_CAPABILITY", capability)];
        compiling_alone("each_generation_gets_its_own_code_or_text", &setting, |_| {
            if !is_set(setting[0]) {
                return;
            }
            let cache = folder(&format!("generation_{capability}"));
            sum(&with_nvrtc(&cache)).unwrap();
            // The compiler that compiles nothing gives what it was asked for.
            let kept = std::fs::read(&entries(&cache)[0]).unwrap();
            assert!(kept.ends_with(format!("--gpu-architecture={target}").as_bytes()), "sm_{capability}");
        });
    }
}

#[test]
fn without_any_kernels_all_ranks_hear_what_is_missing() {
    compiling_alone("without_any_kernels_all_ranks_hear_what_is_missing", &[], |fake| {
        let cache = folder("without_kernels");
        let missing = "/nowhere/libnvrtc.so.13";
        let cases = [
            ("none", "; no NVRTC: CCL_NVRTC_LIBRARY is none"),
            (missing, "no NVRTC: /nowhere/libnvrtc.so.13 cannot be loaded"),
        ];
        for (nvrtc, expected) in cases {
            let errors = refused(&compiling(nvrtc, &cache));
            for error in &errors {
                let text = error.to_string();
                assert!(text.contains("expected code of ccl_interpret_f64_sum_ll for sm_90"), "{text}");
                assert!(text.contains(expected), "{text}");
            }
            let first = errors.iter().find(|error| error.consequence_of().is_none()).unwrap();
            assert!(first.advice().contains("pip install nvidia-cuda-nvrtc"), "{first}");
        }
        assert!(!cache.exists());
        fake.assert_nothing_is_left("no kernels");
    });
}

#[test]
fn an_nvrtc_that_is_too_new_or_too_old_is_not_used() {
    let cases =
        [("14000", "makes code for drivers 14, found driver 13"), ("11080", "expected 12.0 or newer")];
    for (version, expected) in cases {
        let setting = [("CCL_FAKE_NVRTC_VERSION", version)];
        compiling_alone("an_nvrtc_that_is_too_new_or_too_old_is_not_used", &setting, |_| {
            if !is_set(setting[0]) {
                return;
            }
            let errors = refused(&with_nvrtc(&folder("other_versions")));
            assert!(errors.iter().all(|error| error.to_string().contains(expected)), "{errors:?}");
        });
    }
}

#[test]
fn what_nvrtc_or_the_driver_refuses_is_said() {
    compiling_alone("what_nvrtc_or_the_driver_refuses_is_said", &[], |fake| {
        let cache = folder("refused");
        let failures = [
            ("nvrtcCompileProgram", 6, "nvrtcCompileProgram failed with NVRTC_ERROR_COMPILATION (6)"),
            ("nvrtcGetCUBIN", 999, "a code unknown to this NVRTC (999)"),
            ("cuModuleLoadData", 209, "compiled by NVRTC, which the driver does not take: cuModuleLoadData"),
            ("cuModuleLoadData", 222, "from the cache, which the driver does not take: cuModuleLoadData"),
        ];
        for (function, code, expected) in failures {
            // Both ranks ask, and the second finds what the first has loaded, or has put in the cache: whichever fails first is
            // who all hear of.
            (0..2).for_each(|_| fake.fail(function, 1, code));
            let errors = refused(&with_nvrtc(&cache));
            let from_the_cache = expected.replace("compiled by NVRTC", "from the cache");
            let said = |error: &ccl::Error| {
                let error = error.to_string();
                error.contains(expected) || error.contains(&from_the_cache)
            };
            assert!(errors.iter().any(said), "{expected}: {errors:?}");
            fake.reset();
            fake.assert_nothing_is_left(expected);
        }
        sum(&with_nvrtc(&cache)).unwrap();
    });
}

#[test]
fn a_kernel_is_compiled_while_its_first_call_is_captured() {
    compiling_alone("a_kernel_is_compiled_while_its_first_call_is_captured", &[], |fake| {
        let config = with_nvrtc(&folder("captured"));
        local::run_with(&config, 1, |comm| {
            let (seen, own) = stream(fake, &config, 0);
            let mut buffer = DeviceBuffer::new(&config, 0, 8000)?;
            own.begin_capture(CaptureMode::Global).unwrap();
            let call =
                Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f64; 0], ReduceOp::Average) };
            // SAFETY: the buffer outlives the graph.
            #[allow(unsafe_code)]
            unsafe {
                comm.enqueue(call, Addresses::in_place(&mut buffer), &seen)?;
            }
            let mut exec = own.end_capture().unwrap().instantiate().unwrap();
            assert_eq!(compiled(fake), 1);
            buffer.write(&[3.0f64; 1000])?;
            // SAFETY: the buffer lives until the stream is synchronised.
            #[allow(unsafe_code)]
            unsafe {
                exec.launch(&own).unwrap();
            }
            own.synchronize().unwrap();
            let mut values = [0.0f64; 1000];
            buffer.read(&mut values)?;
            assert_eq!(values, [3.0; 1000]);
            Ok(())
        })
        .unwrap();
        fake.assert_nothing_is_left("a capture");
    });
}

#[test]
fn what_a_build_embeds_is_loaded_before_anything_is_compiled() {
    alone(module_path!(), "what_a_build_embeds_is_loaded_before_anything_is_compiled", &[], |fake| {
        let cache = folder("embedded");
        let devices = ccl::devices(&with_nvrtc(&cache)).unwrap();
        let supply = ccl::kernel_supply(&with_nvrtc(&cache), devices.first());
        println!("{supply:?}");
        if !supply.from.starts_with("embedded") {
            return skip("what_a_build_embeds_is_loaded_before_anything_is_compiled", &supply.why);
        }
        sum_of(&with_nvrtc(&cache), 1.0f32).unwrap();
        assert_eq!((compiled(fake), entries(&cache).len()), (0, 0));
        // What the driver does not take of the build is compiled.
        fake.fail("cuModuleLoadData", 1, 209);
        sum_of(&with_nvrtc(&cache), 1.0f32).unwrap();
        assert_eq!((compiled(fake), entries(&cache).len()), (1, 1));
    });
}

#[test]
fn processes_at_once_compile_once() {
    if embeds_all() {
        return skip("processes_at_once_compile_once", "this build embeds all kernels");
    }
    let cache = folder("at_once");
    let name = format!("{}::one_of_several_processes", module_path!().split_once("::").unwrap().1);
    let start = |_| -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &name, "--nocapture"]).env("CCL_TEST_CACHE", &cache);
        child.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..4).map(start).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let said: String = outputs.map(|output| String::from_utf8(output.stdout).unwrap()).collect();
    let counts: Vec<&str> =
        ["compiled 0", "compiled 1"].into_iter().flat_map(|count| said.matches(count)).collect();
    assert_eq!(counts, ["compiled 0", "compiled 0", "compiled 0", "compiled 1"], "{said}");
    assert_eq!(entries(&cache).len(), 1);
}

#[test]
fn one_of_several_processes() {
    let Ok(cache) = std::env::var("CCL_TEST_CACHE") else { return };
    let settings = [("CCL_TEST_CACHE", cache.as_str()), ("CCL_FAKE_NVRTC_MS", "500")];
    compiling_alone("one_of_several_processes", &settings, |fake| {
        sum(&with_nvrtc(Path::new(&cache))).unwrap();
        println!("compiled {}", compiled(fake));
    });
}
