//! Kernels as NVRTC compiles them at run time, where it is installed: every kind, for every generation of devices.
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/real/mod.rs"]
mod real;

use std::time::{Duration, Instant};

use ccl_cuda::{Nvrtc, NvrtcSource, NvrtcTarget};
use ccl_kernels::layout::LaunchArgs;
use ccl_kernels::unit::Unit;

fn compile(nvrtc: &Nvrtc, kernel: &str, target: NvrtcTarget) -> (Vec<u8>, Duration) {
    let unit = Unit::of(kernel).unwrap();
    let source = NvrtcSource { name: unit.name, text: unit.text, headers: &unit.headers };
    let begin = Instant::now();
    let made =
        nvrtc.compile(&source, target, &unit.options).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    let took = begin.elapsed();
    println!("{kernel} {target:?}: {} bytes in {took:.2?}", made.image.len());
    print!("{}", made.log);
    (made.image, took)
}

/// Whether an image holds this kernel and no other of ours.
fn holds_only(image: &[u8], kernel: &str) -> bool {
    let text = String::from_utf8_lossy(image);
    let starts = text.match_indices(".text.ccl_").chain(text.match_indices(".entry ccl_"));
    let mut names = starts.map(|(at, start)| {
        let rest = &text[at + start.len() - 4..];
        rest.split(|end: char| end != '_' && !end.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default()
            .to_owned()
    });
    let first = names.next();
    first.as_deref() == Some(kernel) && names.all(|name| name == kernel)
}

#[test]
fn a_kernel_is_compiled_for_every_generation_in_seconds() {
    let Some(nvrtc) = real::nvrtc("a_kernel_is_compiled_for_every_generation_in_seconds") else { return };
    let kernel = "ccl_interpret_f32_sum_simple";
    for capability in [80, 90, 100, 120] {
        let (code, took) = compile(&nvrtc, kernel, NvrtcTarget::Machine(capability));
        assert!(code.starts_with(b"\x7fELF") && holds_only(&code, kernel), "sm_{capability}");
        assert!(took < LIMIT, "{took:?}");
        let (text, _) = compile(&nvrtc, kernel, NvrtcTarget::Portable(capability));
        assert!(holds_only(&text, kernel), "compute_{capability}");
        let text = String::from_utf8(text).unwrap();
        let parameter = text.split_once(&format!("{kernel}_param_0[")).unwrap().1.split_once(']').unwrap().0;
        assert_eq!(parameter, size_of::<LaunchArgs>().to_string());
        assert!(size_of::<LaunchArgs>() <= 128 && !text.contains(&format!("{kernel}_param_1")));
    }
}

#[test]
fn every_kind_of_kernel_is_compiled() {
    let Some(nvrtc) = real::nvrtc("every_kind_of_kernel_is_compiled") else { return };
    for kernel in [
        "ccl_interpret_bytes_copy_simple",
        "ccl_interpret_bf16_sum_ll",
        "ccl_interpret_f16_max_ll128",
        "ccl_interpret_f8e4m3_sum_simple",
        "ccl_one_shot_f32_sum",
        "ccl_two_shot_bf16_sum",
    ] {
        let (code, took) = compile(&nvrtc, kernel, NvrtcTarget::Machine(90));
        assert!(holds_only(&code, kernel), "{kernel}");
        assert!(took < LIMIT, "{kernel}: {took:?}");
    }
}

/// On a machine that does much else; alone it is a tenth.
const LIMIT: Duration = Duration::from_secs(60);
