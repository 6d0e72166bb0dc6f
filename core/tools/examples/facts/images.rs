//! Compiles the kernels as their build does, for one generation of devices.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::json;

use crate::compile::{Compiler, EVERY, Target, Unit, units};
use crate::machine::{Machine, Options, Outcome};
use crate::toolchain::Toolchain;

/// One cubin for each unit, into the folder that `into` names; those that are there already stay. Without `arch` they are
/// for the first device.
pub(crate) fn compile(options: &Options) -> Outcome<bool> {
    let into = PathBuf::from(options.text("into").ok_or("expected into=FOLDER")?);
    let arch = match options.number("arch", 0)? {
        0 => {
            let (major, minor) = Machine::new()?.context.device().limits()?.capability;
            10 * major + minor
        }
        arch => arch as u32,
    };
    let work = into.join("work");
    let sources = write_sources(&work.join("sources"))?;
    let texts: String = sources.iter().flat_map(|(name, text)| [name.as_str(), text]).collect();
    // The compiler runs elsewhere.
    let target =
        std::path::absolute(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))?;
    let toolchain = Toolchain::find(|name| std::env::var_os(name), &target)?;
    let compiler = Compiler {
        toolchain: &toolchain,
        sources: &std::fs::canonicalize(work.join("sources"))?,
        texts: &texts,
        into: &std::fs::canonicalize(&work)?,
    };
    let wanted = options.text("dtypes").map(|list| list.split(',').collect::<Vec<_>>());
    let dtypes =
        EVERY.iter().copied().filter(|dtype| wanted.as_ref().is_none_or(|list| list.contains(dtype)));
    let mut left = units(&sources, &dtypes.collect::<Vec<_>>());
    // What takes longest is begun first: what is popped first lies last.
    left.sort_by_key(|unit| unit.source.contains("interpret"));
    let (left, made) = (Mutex::new(left), Mutex::new(0));
    let start = Instant::now();
    let next = || left.lock().ok().and_then(|mut left| left.pop());
    let work = || -> Outcome<()> {
        while let Some(unit) = next() {
            one(&compiler, &unit, arch, &into)?;
            *made.lock().map_err(|_| "another compilation panicked")? += 1;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Outcome<()> {
        let workers: Vec<_> = (0..options.number("jobs", 16)?.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a compilation panicked")?)
    })?;
    let made = *made.lock().map_err(|_| "a compilation panicked")?;
    println!(
        "{}",
        json!({ "fact": "compile", "units": made, "arch": arch, "seconds": start.elapsed().as_secs_f64(),
            "compiler": toolchain.version })
    );
    Ok(made > 0)
}

fn one(compiler: &Compiler<'_>, unit: &Unit, arch: u32, into: &Path) -> Outcome<()> {
    let compiled = compiler.compile(unit, Target::Machine(arch))?;
    std::fs::copy(compiled.file, into.join(format!("{}.cubin", unit.name())))?;
    Ok(())
}

/// The sources that this program carries, as files; what the compiler is told of them.
fn write_sources(folder: &Path) -> Outcome<Vec<(String, String)>> {
    let mut list = Vec::new();
    for (name, text) in ccl_kernels::image::SOURCES {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().ok_or("a source lies in a folder")?)?;
        std::fs::write(path, text)?;
        list.push(((*name).to_owned(), (*text).to_owned()));
    }
    Ok(list)
}
