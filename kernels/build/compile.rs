//! Kernels to machine code, one file for each translation unit and target. Builds of all profiles keep them in one place:
//! what one of them has compiled, the other finds.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::toolchain::Toolchain;

/// What is compiled as one: a source file, for one dtype, or for one operation on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    /// Relative to the folder of sources.
    pub(crate) source: String,
    /// As `variants.h` names it; `bytes` for what only moves.
    pub(crate) dtype: &'static str,
    /// As `variants.h` names it; all of them if there is none.
    pub(crate) op: Option<&'static str>,
}

impl Unit {
    /// The name of its image: `interpret.f32`.
    pub(crate) fn name(&self) -> String {
        let stem = Path::new(&self.source).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let op = self.op.map(|op| format!(".{op}")).unwrap_or_default();
        format!("{stem}.{}{op}", self.dtype)
    }

    fn defines(&self) -> Vec<String> {
        let op = self.op.or((self.dtype == BYTES).then_some("copy")).map(|op| format!("-DCCL_ONLY_OP={op}"));
        [format!("-DCCL_ONLY_DTYPE={}", self.dtype)].into_iter().chain(op).collect()
    }
}

/// What machine code is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// One generation of devices, by its capability: 90 is 9.0.
    Machine(u32),
    /// Text that the driver compiles for any device from this capability on.
    Portable(u32),
}

impl Target {
    /// Everything that an embedded image holds.
    pub(crate) const ALL: [Target; 5] = [
        Target::Machine(80),
        Target::Machine(90),
        Target::Machine(100),
        Target::Machine(120),
        Target::Portable(80),
    ];

    /// As the compiler calls it.
    pub(crate) fn arch(self) -> String {
        match self {
            Target::Machine(capability) => format!("sm_{capability}"),
            Target::Portable(capability) => format!("compute_{capability}"),
        }
    }

    fn output(self) -> &'static str {
        match self {
            Target::Machine(_) => "-cubin",
            Target::Portable(_) => "-ptx",
        }
    }

    /// How `fatbinary` is told of it.
    fn image(self, file: &Path) -> String {
        let (kind, sm) = match self {
            Target::Machine(capability) => ("elf", capability),
            Target::Portable(capability) => ("ptx", capability),
        };
        format!("--image3=kind={kind},sm={sm},file={}", file.display())
    }
}

/// What came of one unit for one target.
pub(crate) struct Compiled {
    /// The file.
    pub(crate) file: PathBuf,
}

/// Compiles from one folder of sources into another folder, where it finds again what did not change.
pub(crate) struct Compiler<'a> {
    pub(crate) toolchain: &'a Toolchain,
    /// The folder of sources, and all that is in it.
    pub(crate) sources: &'a Path,
    /// What decides: the text of every source.
    pub(crate) texts: &'a str,
    /// Where files go.
    pub(crate) into: &'a Path,
}

impl Compiler<'_> {
    /// One unit for one target.
    ///
    /// # Errors
    ///
    /// In words: what the compiler said.
    pub(crate) fn compile(&self, unit: &Unit, target: Target) -> Result<Compiled, String> {
        let file = self.into.join(format!("{}.{}", unit.name(), target.arch()));
        let [log, inputs] = [log_of(&file), with(&file, "inputs")];
        let words = |error: std::io::Error| format!("{}: {error}", file.display());
        fs::create_dir_all(self.into).map_err(words)?;
        // Two builds at once want the same.
        let lock = File::create(with(&file, "lock")).map_err(words)?;
        lock.lock().map_err(words)?;
        let wanted = format!("{}\n{:?}\n{}", self.toolchain.version, self.options(unit, target), self.texts);
        let had = fs::read_to_string(&inputs).is_ok_and(|had| had == wanted) && file.is_file();
        if !had {
            let _ = fs::remove_file(&inputs);
            fs::write(&log, self.run(unit, target, &file)?).map_err(words)?;
            fs::write(&inputs, wanted).map_err(words)?;
        }
        Ok(Compiled { file })
    }

    fn run(&self, unit: &Unit, target: Target, file: &Path) -> Result<String, String> {
        let mut nvcc = Command::new(&self.toolchain.nvcc);
        // Folders and names stay out of what is made: the same sources give the same bytes everywhere.
        nvcc.current_dir(self.sources).args(self.options(unit, target)).arg("-o").arg(file).arg(&unit.source);
        said(&mut nvcc)
    }

    fn options(&self, unit: &Unit, target: Target) -> Vec<String> {
        let common = OPTIONS.iter().map(|option| (*option).to_owned());
        let own = [format!("-arch={}", target.arch()), target.output().to_owned()];
        common.chain(own).chain(unit.defines()).collect()
    }

    /// One file of a unit for all targets, from which the driver takes what fits its device.
    ///
    /// # Errors
    ///
    /// In words: what `fatbinary` said.
    pub(crate) fn pack(&self, unit: &Unit, parts: &[(Target, PathBuf)]) -> Result<PathBuf, String> {
        let file = self.into.join(format!("{}.fatbin", unit.name()));
        let mut fatbinary = Command::new(self.toolchain.beside("fatbinary"));
        fatbinary.args(["-64", "--compress-all"]).arg(format!("--create={}", file.display()));
        fatbinary.args(parts.iter().map(|(target, part)| target.image(part)));
        said(&mut fatbinary)?;
        Ok(file)
    }
}

/// All sources below a folder, as (path relative to it, text), sorted.
pub(crate) fn sources(folder: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(at)? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else if ["h", "cu"].iter().any(|ending| path.extension().is_some_and(|found| found == *ending))
            {
                let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// What is compiled of these sources for these dtypes: a special kernel folds, so it has nothing for `bytes`; that of groups only
/// moves.
pub(crate) fn units(sources: &[(String, String)], dtypes: &[&'static str]) -> Vec<Unit> {
    let sources = sources.iter().map(|(name, _)| name).filter(|name| name.ends_with(".cu"));
    let pairs = sources.flat_map(|source| dtypes.iter().map(move |dtype| (source, *dtype)));
    let pairs = pairs.filter(|(source, dtype)| match source.as_str() {
        INTERPRETER => true,
        GROUP => *dtype == BYTES,
        _ => *dtype != BYTES,
    });
    pairs.map(|(source, dtype)| Unit { source: source.clone(), dtype, op: None }).collect()
}

/// Where what was said when a file was compiled lies.
pub(crate) fn log_of(file: &Path) -> PathBuf {
    with(file, "log")
}

/// Runs a command that must succeed; what it said.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.success() { Ok(said) } else { Err(format!("{command:?}: {}\n{said}", output.status)) }
}

fn with(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// The source of the interpreter.
pub(crate) const INTERPRETER: &str = "interpret.cu";

/// The source of the kernel of groups.
pub(crate) const GROUP: &str = "group.cu";

/// What stands for a dtype where nothing is folded.
pub(crate) const BYTES: &str = "bytes";

/// The dtypes that a build embeds; the others are compiled where they are first used.
pub(crate) const COMMON: &[&str] = &[BYTES, "f32", "f16", "bf16"];

/// Every dtype.
pub(crate) const EVERY: &[&str] =
    &[BYTES, "i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"];

const OPTIONS: &[&str] = &["-std=c++17", "-O3", "-I.", "-Xptxas=-v"];
