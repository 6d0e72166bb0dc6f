//! NVRTC: one that is not there, one that compiles nothing, and the real one where it is installed.
#![allow(clippy::unwrap_used)]

mod fake;
mod real;

use std::path::Path;
use std::time::Instant;

use ccl_cuda::*;
use fake::Fake;

const HEADER: (&str, &str) = ("value.h", "#pragma once\n#define VALUE 7u\n");
const TEXT: &str = "#include \"value.h\"\n\
    extern \"C\" __global__ void store(unsigned* to) { *to = VALUE + MORE; }\n";

fn source<'a>(text: &'a str, headers: &'a [(&'a str, &'a str)]) -> NvrtcSource<'a> {
    NvrtcSource { name: "store.cu", text, headers }
}

fn options(more: &str) -> Vec<String> {
    vec!["--std=c++17".to_owned(), format!("-DMORE={more}")]
}

#[test]
fn without_nvrtc_there_is_a_sentence() {
    let absent = Nvrtc::load(Path::new("/nowhere/libnvrtc.so.13")).unwrap_err();
    assert!(matches!(absent, NvrtcAbsent::Library { .. }), "{absent}");
    let said = absent.to_string();
    assert!(said.starts_with("/nowhere/libnvrtc.so.13 cannot be loaded ("), "{said}");
    assert!(said.contains("No such file or directory"), "{said}");
    assert_eq!(Nvrtc::load(Path::new("/nowhere/libnvrtc.so.13")).unwrap_err(), absent);
}

#[test]
fn what_a_library_lacks_is_a_value() {
    let _alone = Fake::new();
    for symbol in NVRTC_SYMBOLS {
        let file = fake::without(symbol, &std::env::temp_dir());
        let absent = Nvrtc::load(&file).unwrap_err();
        std::fs::remove_file(file).unwrap();
        assert!(matches!(&absent, NvrtcAbsent::MissingSymbol { symbol: lacking, .. } if lacking == symbol));
        assert!(absent.to_string().contains(symbol), "{absent}");
    }
}

/// The NVRTC that compiles nothing; its path said so that no other test has loaded it.
fn loaded(detour: &str) -> Nvrtc {
    Nvrtc::load(&fake::said_otherwise(detour)).unwrap()
}

#[test]
fn sources_become_code_for_a_target() {
    let fake = Fake::new();
    let nvrtc = loaded("./");
    assert_eq!(nvrtc.version(), (13, 0));
    assert_eq!(nvrtc.capabilities().unwrap(), [75, 80, 86, 89, 90, 100, 120]);
    let headers = [HEADER];
    let compile = |target| nvrtc.compile(&source(TEXT, &headers), target, &options("1")).unwrap();
    let code = compile(NvrtcTarget::Machine(90));
    assert!(code.image.starts_with(b"\x7fELF") && code.image.ends_with(b"-DMORE=1 --gpu-architecture=sm_90"));
    let text = String::from_utf8(compile(NvrtcTarget::Portable(80)).image).unwrap();
    assert_eq!(text, "// --std=c++17 -DMORE=1 --gpu-architecture=compute_80");
    let context = Context::primary(&fake.driver.devices().unwrap()[0]).unwrap();
    Module::load(&context, &code.image).unwrap();
    Module::load(&context, text.as_bytes()).unwrap();
    drop(context);
    fake.assert_nothing_is_left("compiling");
}

#[test]
fn what_does_not_compile_is_said_in_the_compilers_words() {
    let fake = Fake::new();
    let nvrtc = loaded("./");
    let error = nvrtc.compile(&source(TEXT, &[]), NvrtcTarget::Machine(90), &options("1")).unwrap_err();
    let said = error.to_string();
    let expected = "nvrtcCompileProgram failed with NVRTC_ERROR_COMPILATION (6): cannot open source file";
    assert!(said.starts_with(expected), "{said}");
    let refused = nvrtc.compile(&source("", &[]), NvrtcTarget::Machine(91), &[]).unwrap_err().to_string();
    assert_eq!(refused, "nvrtcCompileProgram failed with NVRTC_ERROR_INVALID_OPTION (5)");
    fake.assert_nothing_is_left("failing");
}

#[test]
fn texts_with_zero_bytes_are_refused() {
    let _alone = Fake::new();
    let nvrtc = loaded("./");
    let headers = [("a.h", "\0")];
    let zeros = [source("\0", &[]), source("", &headers), NvrtcSource { name: "\0", ..source("", &[]) }];
    for source in zeros {
        let error = nvrtc.compile(&source, NvrtcTarget::Machine(90), &[]).unwrap_err();
        assert!(matches!(error, NvrtcError::Zero { call: "nvrtcCreateProgram", .. }), "{error}");
    }
    let error = nvrtc.compile(&source("", &[]), NvrtcTarget::Machine(90), &options("\0")).unwrap_err();
    assert!(matches!(error, NvrtcError::Zero { call: "nvrtcCompileProgram", .. }), "{error}");
}

#[test]
fn every_function_fails_once_and_leaves_nothing() {
    let fake = Fake::new();
    let nvrtc = loaded("./");
    // A log is not needed where the compilation succeeds, and nobody waits for what a program leaves.
    let quiet = ["nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcDestroyProgram"];
    let everything = || -> std::result::Result<(), NvrtcError> {
        nvrtc.capabilities()?;
        let headers = [HEADER];
        for target in [NvrtcTarget::Machine(90), NvrtcTarget::Portable(90)] {
            nvrtc.compile(&source(TEXT, &headers), target, &options("1"))?;
        }
        Ok(())
    };
    everything().unwrap();
    for name in NVRTC_SYMBOLS {
        fake.fail(name, 1, 999);
        match *name {
            "nvrtcGetErrorString" => fake.reset(),
            "nvrtcVersion" => {
                let absent = Nvrtc::load(&fake::said_otherwise("../examples/./")).unwrap_err();
                assert!(matches!(&absent, NvrtcAbsent::Failed { .. }), "{absent}");
            }
            _ if quiet.contains(name) => everything().unwrap(),
            _ => {
                let error = everything().unwrap_err();
                // A code that nobody knows, and no words for it.
                let expected = format!("{name} failed with a code unknown to this NVRTC (999)");
                assert_eq!(error.to_string(), expected);
            }
        }
        if *name != "nvrtcGetErrorString" {
            assert_eq!(fake.failed(name), 1, "{name}");
        }
        fake.reset();
        fake.assert_nothing_is_left(name);
    }
}

#[test]
fn the_real_one_compiles_for_every_generation() {
    let Some(nvrtc) = real::nvrtc("the_real_one_compiles_for_every_generation") else { return };
    println!("{nvrtc:?} for {:?}", nvrtc.capabilities().unwrap());
    let headers = [HEADER];
    for capability in [80, 90, 100, 120] {
        let begin = Instant::now();
        let compile = |target| nvrtc.compile(&source(TEXT, &headers), target, &options("1")).unwrap();
        let code = compile(NvrtcTarget::Machine(capability));
        assert!(code.image.starts_with(b"\x7fELF"));
        let text = String::from_utf8(compile(NvrtcTarget::Portable(capability)).image).unwrap();
        assert!(text.contains(&format!(".target sm_{capability}")), "{text}");
        assert!(text.contains(".entry store(") && !text.contains('\0'), "{text}");
        println!("sm_{capability}: {} and {} bytes in {:?}", code.image.len(), text.len(), begin.elapsed());
    }
}

#[test]
fn the_real_one_says_what_is_wrong() {
    let Some(nvrtc) = real::nvrtc("the_real_one_says_what_is_wrong") else { return };
    let compile = |text: &str, target| nvrtc.compile(&source(text, &[]), target, &options("1")).unwrap_err();
    let error = compile(TEXT, NvrtcTarget::Machine(90)).to_string();
    assert!(error.contains("NVRTC_ERROR_COMPILATION (6)") && error.contains("value.h"), "{error}");
    let error = compile("int x = ;", NvrtcTarget::Portable(90)).to_string();
    assert!(error.contains("store.cu(1)"), "{error}");
    let error = compile("", NvrtcTarget::Machine(91)).to_string();
    assert!(error.contains("nvrtcCompileProgram failed with NVRTC_ERROR_INVALID_OPTION (5)"), "{error}");
}
