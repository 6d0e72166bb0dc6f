//! Gates on machine code: what the compiler makes of the interpreter for every target, without a device.
//!
//! Nothing may be spilled, nothing may lie in local memory, registers may not pass a ceiling, and data must move by 16
//! bytes. Where there is no CUDA tool chain this is skipped, loudly; `KERNEL_GATES=required` makes that a failure.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the build embeds what it compiles; these tests only look at it")]
#[path = "../../build/compile.rs"]
mod compile;
mod judge;
#[path = "../../build/toolchain.rs"]
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

use compile::{BYTES, COMMON, Compiler, EVERY, GROUP, INTERPRETER, Target, Unit};
use judge::{Kernel, objections};
use toolchain::Toolchain;

#[test]
fn the_interpreter_keeps_common_dtypes_in_registers_and_moves_them_by_16_bytes() {
    let Some(toolchain) = toolchain() else { return };
    let op = |dtype: &str| if dtype == BYTES { "copy" } else { "sum" };
    let mut units: Vec<Unit> = COMMON.iter().map(|dtype| interpreter(dtype, Some(op(dtype)))).collect();
    units.push(Unit { source: GROUP.to_owned(), dtype: BYTES, op: Some("copy") });
    let kernels = compiled(&toolchain, &units);
    assert_eq!(kernels.len(), (COMMON.len() * 3 + 1) * MACHINES.len(), "a protocol has no kernel");
    uphold(&kernels);
}

#[test]
#[ignore = "compiles for many minutes: a step of `scripts/test long`"]
fn the_interpreter_compiles_for_every_dtype_and_keeps_common_ones_in_registers() {
    let Some(toolchain) = toolchain() else { return };
    for dtype in EVERY {
        let kernels = compiled(&toolchain, &[interpreter(dtype, None)]);
        assert_eq!(kernels.len(), if *dtype == BYTES { 3 } else { 12 } * MACHINES.len(), "of {dtype}");
        if COMMON.contains(dtype) {
            uphold(&kernels);
        } else {
            show(&kernels);
        }
    }
}

#[test]
fn a_kernel_that_spills_is_refused() {
    let Some(toolchain) = toolchain() else { return };
    let kernels = planted(&toolchain, "spills.cu");
    assert_eq!(kernels.len(), MACHINES.len());
    for kernel in &kernels {
        let objections = objections(kernel);
        assert!(objections.iter().any(|text| text.contains("spills")), "{kernel:?}: {objections:?}");
        assert!(objections.iter().any(|text| text.contains("local memory")), "{kernel:?}: {objections:?}");
    }
}

#[test]
fn a_kernel_that_moves_by_8_bytes_is_refused() {
    let Some(toolchain) = toolchain() else { return };
    let kernels = planted(&toolchain, "narrow.cu");
    assert_eq!(kernels.len(), MACHINES.len());
    for kernel in &kernels {
        let objections = objections(kernel);
        assert_eq!(objections.len(), 2, "loads and stores of {kernel:?}: {objections:?}");
        assert!(objections.iter().all(|text| text.contains("16-byte")), "{kernel:?}: {objections:?}");
    }
}

#[test]
fn a_kernel_that_tears_lines_or_reads_what_is_stale_is_refused() {
    let Some(toolchain) = toolchain() else { return };
    let kernels = planted(&toolchain, "apart.cu");
    assert_eq!(kernels.len(), MACHINES.len());
    for kernel in &kernels {
        let objections = objections(kernel);
        assert!(
            objections.iter().any(|text| text.contains("2 of 2 accesses of lines")),
            "{kernel:?}: {objections:?}"
        );
        assert!(
            objections.iter().any(|text| text.contains("1 loads through a cache")),
            "{kernel:?}: {objections:?}"
        );
    }
}

/// The tool chain, or a line that says what is skipped.
fn toolchain() -> Option<Toolchain> {
    match Toolchain::find(|name| env::var_os(name), target_folder()) {
        Ok(toolchain) => Some(toolchain),
        Err(why) if env::var_os("KERNEL_GATES").is_some_and(|said| said == "required") => {
            panic!("KERNEL_GATES is required, and kernels cannot be compiled: {why}")
        }
        Err(why) => {
            println!("SKIPPED: gates on the kernels' machine code: {why}");
            None
        }
    }
}

fn interpreter(dtype: &'static str, op: Option<&'static str>) -> Unit {
    Unit { source: INTERPRETER.to_owned(), dtype, op }
}

fn compiled(toolchain: &Toolchain, units: &[Unit]) -> Vec<Kernel> {
    kernels(toolchain, &Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda"), units)
}

/// The kernel of a file beside this one, which has a fault on purpose.
fn planted(toolchain: &Toolchain, source: &str) -> Vec<Kernel> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gates");
    kernels(toolchain, &folder, &[Unit { source: source.to_owned(), dtype: "f32", op: Some("sum") }])
}

/// All kernels of these units, for all machines: as many compilers at once as there are cores.
fn kernels(toolchain: &Toolchain, sources: &Path, units: &[Unit]) -> Vec<Kernel> {
    let texts: String =
        compile::sources(sources).unwrap().into_iter().map(|(name, text)| name + &text).collect();
    let into = target_folder().join("kernels");
    let compiler = Compiler { toolchain, sources, texts: &texts, into: &into };
    let jobs = Mutex::new(units.iter().flat_map(|unit| MACHINES.map(|machine| (unit, machine))));
    let found = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some((unit, machine)) = jobs.lock().unwrap().next() else { return };
            let file = compiler.compile(unit, Target::Machine(machine)).unwrap().file;
            let log = fs::read_to_string(compile::log_of(&file)).unwrap();
            let kernels = judge::kernels(machine, &log, &disassembled(toolchain, &file));
            found.lock().unwrap().extend(kernels);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by(|a, b| (&a.name, a.machine).cmp(&(&b.name, b.machine)));
    found
}

fn disassembled(toolchain: &Toolchain, cubin: &PathBuf) -> String {
    let program = toolchain.beside("nvdisasm");
    let output = Command::new(&program).arg("-c").arg(cubin).output();
    let output =
        output.unwrap_or_else(|error| panic!("{}: {error}: scripts/setup installs it", program.display()));
    assert!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn uphold(kernels: &[Kernel]) {
    show(kernels);
    let objections: Vec<String> = kernels.iter().flat_map(objections).collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

fn show(kernels: &[Kernel]) {
    for kernel in kernels {
        println!("{kernel}");
    }
    print!("{}", judge::table(kernels, &MACHINES));
}

/// Cargo's folder: this one's parent.
fn target_folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// The capabilities that machine code is made for.
const MACHINES: [u32; 4] = [80, 90, 100, 120];
