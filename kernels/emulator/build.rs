//! Compiles the kernels as C++: each dtype of the interpreter apart, so that no file takes long.

use std::path::{Path, PathBuf};
use std::thread;

fn main() {
    if is_only_looked_at() {
        return;
    }
    let emulator = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets it"));
    let cuda = emulator.join("../cuda");
    let mut units = Vec::new();
    for folder in [emulator.join("kernels"), cuda.clone(), cuda.join("special")] {
        println!("cargo:rerun-if-changed={}", folder.display());
        for file in files(&folder) {
            println!("cargo:rerun-if-changed={}", file.display());
            units.extend(units_of(&file));
        }
    }
    let mut library = compiler(&cuda);
    for object in compile(&units, &cuda, &out) {
        library.object(object);
    }
    // Kernels make themselves known; nothing refers to them by name.
    library.link_lib_modifier("+whole-archive").compile("ccl_emulated_kernels");
}

/// Whether Clippy asks: cargo has this run once more for it, and links nothing.
fn is_only_looked_at() -> bool {
    println!("cargo:rerun-if-env-changed=RUSTC_WORKSPACE_WRAPPER");
    let wrapper = std::env::var_os("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default();
    Path::new(&wrapper).file_stem().is_some_and(|name| name == "clippy-driver")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|p| p.is_file()).collect();
    files.sort();
    files
}

/// One compilation: a file, and the dtype it is compiled for if it lists variants.
type Unit = (PathBuf, Option<&'static str>);

fn units_of(file: &Path) -> Vec<Unit> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("cu") if lists_variants(file, "CCL_INTERPRET_VARIANTS(") => of_dtypes(file, &DTYPES),
        // What folds nothing has no special kernel.
        Some("cu") if lists_variants(file, "CCL_SPECIAL_VARIANTS(") => of_dtypes(file, &DTYPES[1..]),
        Some("cu" | "cpp") => vec![(file.to_path_buf(), None)],
        _ => Vec::new(),
    }
}

fn of_dtypes(file: &Path, dtypes: &[&'static str]) -> Vec<Unit> {
    dtypes.iter().map(|dtype| (file.to_path_buf(), Some(*dtype))).collect()
}

fn lists_variants(file: &Path, list: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.contains(list))
}

/// Compiles on as many threads as there are jobs, and gives the objects in the order of the units.
fn compile(units: &[Unit], cuda: &Path, out: &Path) -> Vec<PathBuf> {
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let mut objects = vec![Vec::new(); units.len()];
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done = std::sync::Mutex::new(&mut objects);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(unit) = units.get(i) else { return };
                    let made = object(unit, cuda, out);
                    done.lock().expect("no compiler thread panics holding it")[i] = made;
                }
            });
        }
    });
    objects.into_iter().flatten().collect()
}

fn object((file, dtype): &Unit, cuda: &Path, out: &Path) -> Vec<PathBuf> {
    let mut compiler = compiler(cuda);
    if let Some(dtype) = dtype {
        compiler.define("CCL_ONLY_DTYPE", *dtype);
        if *dtype == "bytes" {
            compiler.define("CCL_ONLY_OP", "copy");
        }
    }
    compiler.out_dir(out.join(dtype.unwrap_or("all"))).file(file).compile_intermediates()
}

fn compiler(cuda: &Path) -> cc::Build {
    let mut compiler = cc::Build::new();
    compiler
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++17")
        // Compiling takes half as long as at 2, and running what is compiled little longer (ADR 0131).
        .opt_level(1)
        // Nobody steps through it, and it takes longer to compile.
        .debug(false)
        .define("CCL_EMU", None)
        .include(cuda)
        .flag("-x")
        .flag("c++")
        // Contracted operations would round once where devices and hosts round twice.
        .flag("-ffp-contract=off")
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .warnings(true)
        .extra_warnings(true);
    compiler
}

/// The dtypes of `kernels/cuda/variants.h`.
const DTYPES: [&str; 13] =
    ["bytes", "i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"];
