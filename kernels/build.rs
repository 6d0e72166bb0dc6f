//! Embeds the kernels: always their sources, and their machine code if asked for.
//!
//! A compiler is looked for, never fetched. `CCL_KERNELS` says what is wanted: `none`, which is the default because
//! compiling takes minutes; `fatbin`, the common dtypes, or the build fails; `all`, every dtype, or the build fails.

#[path = "build/compile.rs"]
mod compile;
#[path = "build/toolchain.rs"]
mod toolchain;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{env, fs};

use compile::{COMMON, Compiler, EVERY, Target, Unit};
use toolchain::Toolchain;

fn main() {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("cuda");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let sources = compile::sources(&folder).expect("the sources of the kernels can be read");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=build");
    for variable in ["CCL_KERNELS", "CCL_NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    fs::write(out.join("sources.rs"), source_table(&folder, &sources))
        .expect("cargo's folder can be written");
    let images = images(&folder, &sources, &out);
    fs::write(out.join("images.rs"), image_table(&images)).expect("cargo's folder can be written");
}

/// The images that this build embeds, by name.
fn images(folder: &Path, sources: &[(String, String)], out: &Path) -> Vec<(String, PathBuf)> {
    let wish = env::var("CCL_KERNELS").unwrap_or_default();
    let dtypes = match wish.as_str() {
        "" | "none" => return Vec::new(),
        "all" => EVERY,
        "fatbin" => COMMON,
        other => panic!("CCL_KERNELS is {other:?}: expected none, fatbin or all"),
    };
    match compiled(folder, sources, out, dtypes) {
        Ok(images) => images,
        Err(why) => panic!("CCL_KERNELS is {wish}, and that could not be made: {why}"),
    }
}

fn compiled(
    folder: &Path,
    sources: &[(String, String)],
    out: &Path,
    dtypes: &[&'static str],
) -> Result<Vec<(String, PathBuf)>, String> {
    let target = cargo_folder(out);
    watch_for_a_compiler(&target);
    let toolchain = Toolchain::find(|name| env::var_os(name), &target)?;
    let texts: String = sources.iter().flat_map(|(name, text)| [name.as_str(), text]).collect();
    let into = target.join("kernels");
    let compiler = Compiler { toolchain: &toolchain, sources: folder, texts: &texts, into: &into };
    let units = compile::units(sources, dtypes);
    all_parts(&compiler, &units)?.iter().map(|(unit, parts)| packed(&compiler, unit, parts, out)).collect()
}

/// Each unit for each target, as many at once as cargo allows.
fn all_parts(compiler: &Compiler<'_>, units: &[Unit]) -> Result<Vec<(Unit, Parts)>, String> {
    let jobs = units.iter().enumerate().flat_map(|(index, _)| Target::ALL.map(|target| (index, target)));
    let jobs = Mutex::new(jobs);
    let made = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        loop {
            let next = jobs.lock().map_err(|_| "another compilation panicked")?.next();
            let Some((index, target)) = next else { return Ok(()) };
            let part = compiler.compile(&units[index], target)?;
            made.lock().map_err(|_| "another compilation panicked")?.push((index, target, part.file));
        }
    };
    let threads = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| "a compilation panicked".to_owned())?)
    })?;
    let mut made: Vec<(usize, Target, PathBuf)> =
        made.into_inner().map_err(|_| "a compilation panicked".to_owned())?;
    made.sort_by_key(|(index, target, _)| (*index, Target::ALL.iter().position(|known| known == target)));
    let of = |index: usize| {
        made.iter().filter(move |part| part.0 == index).map(|part| (part.1, part.2.clone())).collect()
    };
    Ok(units.iter().enumerate().map(|(index, unit)| (unit.clone(), of(index))).collect())
}

fn packed(
    compiler: &Compiler<'_>,
    unit: &Unit,
    parts: &Parts,
    out: &Path,
) -> Result<(String, PathBuf), String> {
    let at = out.join(format!("{}.fatbin", unit.name()));
    let file = compiler.pack(unit, parts)?;
    fs::rename(&file, &at).map_err(|error| format!("{}: {error}", at.display()))?;
    Ok((unit.name(), at))
}

/// Cargo's folder: what `scripts/setup` installs lies there, and what is compiled is kept there.
fn cargo_folder(out: &Path) -> PathBuf {
    // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out, or TARGET/TRIPLE/PROFILE/build/PACKAGE/out.
    let has_venvs = |folder: &&Path| folder.join("venvs").is_dir();
    let usual = out.ancestors().nth(4).unwrap_or(out);
    out.ancestors().skip(4).take(2).find(has_venvs).unwrap_or(usual).to_owned()
}

/// Has cargo ask again once `scripts/setup` has installed a compiler.
fn watch_for_a_compiler(target: &Path) {
    let mark = target.join("venvs/cuda.changed");
    if !mark.exists() {
        // Without the mark cargo would ask at every build.
        let _ = fs::create_dir_all(target.join("venvs"));
        let _ = fs::write(&mark, "");
    }
    println!("cargo::rerun-if-changed={}", mark.display());
}

fn source_table(folder: &Path, sources: &[(String, String)]) -> String {
    let mut table = "&[\n".to_owned();
    for (name, _) in sources {
        let _ = writeln!(table, "    ({name:?}, include_str!({:?})),", folder.join(name));
    }
    table + "]\n"
}

fn image_table(images: &[(String, PathBuf)]) -> String {
    let mut table = "&[\n".to_owned();
    for (name, file) in images {
        let _ = writeln!(table, "    ({name:?}, include_bytes!({file:?})),");
    }
    table + "]\n"
}

type Parts = Vec<(Target, PathBuf)>;
