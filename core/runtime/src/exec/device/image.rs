//! Where a device's kernels come from: a file that a setting names; else this build; else NVRTC, by way of the cache.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ccl_cuda::{Context, Module};
use ccl_kernels::target::Target;
use ccl_kernels::unit::Unit;
use ccl_kernels::{fatbin, image};

use super::cache::{Cache, Key};
use super::compiler::{self, Compiler};
use super::failed;
use crate::config::Config;
use crate::error::{Error, Fault, Result};
use crate::exec::tuning::user_cache;

/// Where kernels for one device may come from.
#[derive(Clone)]
pub(super) struct Supply {
    /// A file or folder in place of all else.
    pub(super) named: Option<PathBuf>,
    /// What this build embeds, by name.
    pub(super) embedded: &'static [(&'static str, &'static [u8])],
    /// Finds the compiler.
    pub(super) compiler: Arc<dyn Fn() -> Result<Arc<dyn Compiler>, String> + Send + Sync>,
    pub(super) cache: Option<Cache>,
    /// The device's, times ten.
    pub(super) capability: u32,
    /// As the driver counts.
    pub(super) driver_version: u32,
}

/// Who gave an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tier {
    /// `CCL_CUDA_IMAGE`.
    Named,
    /// The build.
    Embedded,
    /// The cache, of what NVRTC made.
    Cached,
    /// NVRTC, just now.
    Compiled,
}

/// An image that holds a kernel, not yet read or made.
pub(super) struct Image {
    source: Source,
    /// What of it the device will run, if that is known.
    pub(super) target: Option<Target>,
}

/// Looks for an image of a kernel.
type Way = fn(&Supply, &str) -> Result<Image, Miss>;

enum Source {
    File(PathBuf),
    Embedded(&'static [u8]),
    Compiled { compiler: Arc<dyn Compiler>, unit: Unit, key: Key },
}

/// Why an image was not to be had.
pub(super) enum Miss {
    /// In words; the next one may be.
    Next(String),
    /// No other is asked.
    Stop(Error),
}

impl Supply {
    /// What the settings say for a device of this capability under a driver of this version.
    pub(super) fn of(config: &Config, (major, minor): (u32, u32), driver_version: u32) -> Supply {
        let nvrtc = config.nvrtc_library().map(Path::to_owned);
        Supply {
            named: config.cuda_image().map(Path::to_owned),
            embedded: image::EMBEDDED,
            compiler: Arc::new(move || compiler::find(nvrtc.as_deref(), driver_version)),
            cache: cache_folder(config).map(Cache::new),
            capability: 10 * major + minor,
            driver_version,
        }
    }

    /// The images that may hold a kernel, in the order of asking.
    pub(super) fn images(&self, kernel: &str) -> impl Iterator<Item = Result<Image, Miss>> {
        let ways: &[Way] = match self.named {
            Some(_) => &[|supply, kernel| supply.in_named(kernel).map_err(Miss::Stop)],
            None => &[
                |supply, kernel| supply.in_build(kernel).map_err(Miss::Next),
                |supply, kernel| supply.compiled(kernel).map_err(Miss::Next),
            ],
        };
        ways.iter().map(move |way| way(self, kernel))
    }

    /// What the first image that holds a kernel is for, if that is known. Loads and compiles nothing.
    pub(super) fn first_target(&self, kernel: &str) -> Option<Target> {
        self.images(kernel).find_map(Result::ok).and_then(|image| image.target)
    }

    fn in_named(&self, kernel: &str) -> Result<Image> {
        let named = self.named.as_deref().unwrap_or(Path::new(""));
        let file = if named.is_dir() { part(named, kernel)? } else { named.to_owned() };
        Ok(Image { source: Source::File(file), target: None })
    }

    /// What this build embeds. Errors: in words.
    pub(super) fn in_build(&self, kernel: &str) -> Result<Image, String> {
        let name = image::image_of(kernel).unwrap_or_default();
        let known = self.embedded.iter().find(|(embedded, _)| *embedded == name);
        let Some((_, bytes)) = known else {
            let nothing = if self.embedded.is_empty() { "nothing" } else { "other kernels only" };
            return Err(format!("this build embeds {nothing}"));
        };
        let target = match fatbin::targets(bytes) {
            Some(targets) => Some(
                self.best(targets)
                    .ok_or_else(|| format!("what this build embeds is not for sm_{}", self.capability))?,
            ),
            // The driver will know.
            None => None,
        };
        Ok(Image { source: Source::Embedded(bytes), target })
    }

    /// What the compiler will make, or made. Errors: in words.
    pub(super) fn compiled(&self, kernel: &str) -> Result<Image, String> {
        let compiler = (self.compiler)().map_err(|why| format!("no NVRTC: {why}"))?;
        let unit = Unit::of(kernel).ok_or_else(|| format!("no source holds {kernel}"))?;
        let version = compiler.version();
        // A driver takes machine code of a newer NVRTC of its generation, but no newer text.
        let reads = version.0 * 1000 + version.1 * 10 <= self.driver_version;
        let targets = compiler.targets()?.into_iter();
        let targets = targets.filter(|target| reads || matches!(target, Target::Machine(_)));
        let target = self.best(targets).ok_or_else(|| {
            format!("{} makes nothing that sm_{} runs under this driver", compiler.name(), self.capability)
        })?;
        let key = key(&unit, target, version);
        Ok(Image { source: Source::Compiled { compiler, unit, key }, target: Some(target) })
    }

    fn best(&self, targets: impl IntoIterator<Item = Target>) -> Option<Target> {
        Target::best(targets, self.capability)
    }

    /// Why there is no image for a kernel, given why each was not to be had.
    pub(super) fn none(&self, kernel: &str, why: &[String]) -> Error {
        let cause =
            format!("expected code of {kernel} for sm_{}, found none: {}", self.capability, why.join("; "));
        Error::new(Fault::Device, cause, NONE_ADVICE)
    }
}

impl Image {
    /// What it is found by again.
    pub(super) fn key(&self) -> Cow<'_, str> {
        match &self.source {
            Source::File(path) => path.to_string_lossy(),
            Source::Embedded(bytes) => format!("{:p}", bytes.as_ptr()).into(),
            Source::Compiled { key, .. } => key.name().into(),
        }
    }

    /// What compiles it, if anything does.
    pub(super) fn compiler(&self) -> Option<String> {
        match &self.source {
            Source::Compiled { compiler, .. } => Some(compiler.name()),
            _ => None,
        }
    }

    /// Reads or makes it, which blocks for seconds if it is compiled.
    pub(super) fn bytes(&self, supply: &Supply) -> Result<(Cow<'static, [u8]>, Tier), Miss> {
        match &self.source {
            Source::File(path) => Ok((read(path).map_err(Miss::Stop)?.into(), Tier::Named)),
            Source::Embedded(bytes) => Ok(((*bytes).into(), Tier::Embedded)),
            Source::Compiled { compiler, unit, key } => {
                let cached = || supply.cache.as_ref()?.get(key);
                if let Some(bytes) = cached() {
                    return Ok((bytes.into(), Tier::Cached));
                }
                // Another process may be at it, and be done once this one has the right.
                let _alone = supply.cache.as_ref().and_then(|cache| cache.alone(key, PATIENCE));
                if let Some(bytes) = cached() {
                    return Ok((bytes.into(), Tier::Cached));
                }
                let target = self.target.unwrap_or(Target::Machine(supply.capability));
                let failed = |why| Miss::Next(format!("{} failed: {why}", compiler.name()));
                let bytes = compiler.compile(unit, target).map_err(failed)?;
                supply.cache.iter().for_each(|cache| cache.put(key, &bytes));
                Ok((bytes.into(), Tier::Compiled))
            }
        }
    }

    /// Loads it. An image that the driver does not take may leave it to the next one.
    pub(super) fn load(&self, supply: &Supply, context: &Context) -> Result<(Module, Tier), Miss> {
        let (bytes, tier) = self.bytes(supply)?;
        let module = Module::load(context, &bytes).map_err(|error| match tier {
            Tier::Named => Miss::Stop(failed(error)),
            _ if error.code().is_some_and(|code| REFUSALS.contains(&code)) => {
                Miss::Next(format!("{tier}, which the driver does not take: {error}"))
            }
            _ => Miss::Stop(failed(error)),
        })?;
        Ok((module, tier))
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tier::Named => "named in CCL_CUDA_IMAGE",
            Tier::Embedded => "embedded in this build",
            Tier::Cached => "compiled earlier, from the cache",
            Tier::Compiled => "compiled by NVRTC",
        })
    }
}

/// Where compiled kernels are kept; nothing if they are not.
pub(super) fn cache_folder(config: &Config) -> Option<PathBuf> {
    match config.kernel_cache() {
        Some(off) if off.as_os_str() == NO_CACHE => None,
        Some(folder) => Some(folder.to_owned()),
        None => Some(user_cache()?.join("kernels")),
    }
}

/// All that a compiled kernel was made from.
fn key(unit: &Unit, target: Target, (major, minor): (u32, u32)) -> Key {
    let how = [target.to_string(), format!("NVRTC {major}.{minor}"), unit.options.len().to_string()];
    let sources = [unit.name, unit.text].into_iter();
    let headers = unit.headers.iter().flat_map(|(name, text)| [*name, *text]);
    let how = how.iter().chain(&unit.options).map(String::as_str);
    Key::of(how.chain(sources).chain(headers))
}

/// The file of a folder that holds a kernel: `interpret.f32.cubin` and so on.
fn part(folder: &Path, kernel: &str) -> Result<PathBuf> {
    let stem = image::image_of(kernel).unwrap_or_default();
    let files = ENDINGS.map(|ending| folder.join(format!("{stem}.{ending}")));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Error::new(
            Fault::Device,
            format!(
                "expected {stem}.cubin, .fatbin or .ptx for {kernel} in {} (CCL_CUDA_IMAGE), found none",
                folder.display()
            ),
            "compile kernels for this dtype into the folder, or name another",
        )
    })
}

/// Of files with kernels, the most particular first.
const ENDINGS: [&str; 3] = ["cubin", "fatbin", "ptx"];

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let doing = format!("read the kernels in {} (CCL_CUDA_IMAGE)", path.display());
        Error::system(&doing, error, "name a cubin, fatbin or PTX file that can be read")
    })
}

const NO_CACHE: &str = "none";
/// How long a process waits for another that compiles the same.
const PATIENCE: Duration = Duration::from_secs(60);
/// The driver's codes for images that are not for this device or driver: broken, for another device, PTX that it cannot
/// compile, or no compiler for it.
const REFUSALS: [i32; 6] = [200, 209, 218, 221, 222, 223];
const NONE_ADVICE: &str = "install NVRTC of the driver's version (CUDA's toolkit, or `pip install nvidia-cuda-nvrtc`) and say in \
                           CCL_NVRTC_LIBRARY where, build with CCL_KERNELS=fatbin, or name a file with kernels in CCL_CUDA_IMAGE";

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A compiler that writes down what it was asked.
    pub(in super::super) struct Toy {
        version: (u32, u32),
        fails: bool,
        compiled: AtomicU32,
    }

    impl Compiler for Toy {
        fn version(&self) -> (u32, u32) {
            self.version
        }

        fn name(&self) -> String {
            "Toy".to_owned()
        }

        fn targets(&self) -> Result<Vec<Target>, String> {
            Ok([80, 90].into_iter().flat_map(|own| [Target::Machine(own), Target::Portable(own)]).collect())
        }

        fn compile(&self, unit: &Unit, target: Target) -> Result<Vec<u8>, String> {
            self.compiled.fetch_add(1, Ordering::Relaxed);
            match self.fails {
                true => Err("error in line 7".to_owned()),
                false => Ok(format!("{target} {}", unit.options.join(" ")).into_bytes()),
            }
        }
    }

    pub(in super::super) fn toy(version: (u32, u32), fails: bool) -> Arc<Toy> {
        Arc::new(Toy { version, fails, compiled: AtomicU32::new(0) })
    }

    /// A build that embeds the kernels of one dtype for these capabilities.
    pub(in super::super) fn embedding(capabilities: &[u32]) -> &'static [(&'static str, &'static [u8])] {
        let part = |capability: &u32| {
            let mut part = [0; 72];
            (part[0], part[4], part[8], part[28]) = (2, 64, 8, *capability as u8);
            part
        };
        let body: Vec<u8> = capabilities.iter().flat_map(part).collect();
        let header =
            [&[0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0][..], &(body.len() as u64).to_le_bytes()].concat();
        Box::leak(Box::new([("interpret.f32", &*[header, body].concat().leak())]))
    }

    pub(in super::super) fn supply(toy: Option<&Arc<Toy>>, capability: u32) -> Supply {
        let toy = toy.cloned();
        Supply {
            named: None,
            embedded: &[],
            compiler: Arc::new(move || match &toy {
                Some(toy) => Ok(Arc::clone(toy) as Arc<dyn Compiler>),
                None => Err("libtoy.so cannot be loaded (not there)".to_owned()),
            }),
            cache: None,
            capability,
            driver_version: 13_000,
        }
    }

    /// Who serves a kernel, for what target, with which bytes; or why nobody does.
    fn serve(supply: &Supply, kernel: &str) -> Result<(Tier, Option<Target>, Vec<u8>), String> {
        let mut why = Vec::new();
        for image in supply.images(kernel) {
            match image.and_then(|image| Ok((image.bytes(supply)?, image.target))) {
                Ok(((bytes, tier), target)) => return Ok((tier, target, bytes.into_owned())),
                Err(Miss::Next(reason)) => why.push(reason),
                Err(Miss::Stop(error)) => return Err(error.to_string()),
            }
        }
        Err(supply.none(kernel, &why).to_string())
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Kept {
        Nowhere,
        NotYet,
        Whole,
        Broken,
    }

    /// A cache in this state for a kernel that the toy compiles for this device.
    fn cache(folder: &Path, state: Kept, capability: u32) -> Option<Cache> {
        let cache = Cache::new(folder.to_owned());
        let maker = toy((13, 0), false);
        let filling = Supply { cache: Some(cache.clone()), ..supply(Some(&maker), capability) };
        if matches!(state, Kept::Whole | Kept::Broken) {
            let _ = serve(&filling, KERNEL);
        }
        if state == Kept::Broken {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let entries = entries.filter(|file| file.extension().is_some_and(|ending| ending == "kernel"));
            entries.for_each(|file| std::fs::write(file, "not whole").unwrap());
        }
        (state != Kept::Nowhere).then_some(cache)
    }

    #[test]
    fn every_combination_is_served_by_the_first_that_can() {
        let builds: [&[u32]; 3] = [&[], &[80], &[80, 90]];
        let mut seen = [0; 4];
        for (build, has_nvrtc, capability) in
            builds.iter().flat_map(|build| [(*build, false), (*build, true)]).flat_map(|(build, has)| {
                // Older than all, of a known generation, known, newer than all.
                [75, 86, 90, 130].map(|capability| (build, has, capability))
            })
        {
            for state in [Kept::Nowhere, Kept::NotYet, Kept::Whole, Kept::Broken] {
                let folder = tempfile::tempdir().unwrap();
                let maker = toy((13, 0), false);
                let supply = Supply {
                    embedded: if build.is_empty() { &[] } else { embedding(build) },
                    cache: cache(folder.path(), state, capability),
                    ..supply(has_nvrtc.then_some(&maker), capability)
                };
                let case = format!("{build:?} NVRTC {has_nvrtc} cache {state:?} sm_{capability}");
                let is_embedded = build.iter().any(|own| own / 10 == capability / 10 && *own <= capability);
                let code = match capability {
                    86 => Some(Target::Machine(80)),
                    90 => Some(Target::Machine(90)),
                    130 => Some(Target::Portable(90)),
                    _ => None,
                };
                let found = serve(&supply, KERNEL).map(|(tier, target, _)| (tier, target));
                let expected = match (is_embedded, has_nvrtc, code) {
                    (true, ..) => Some((Tier::Embedded, code)),
                    (false, true, Some(_)) if state == Kept::Whole => Some((Tier::Cached, code)),
                    (false, true, Some(_)) => Some((Tier::Compiled, code)),
                    _ => None,
                };
                assert_eq!(found.as_ref().ok().copied(), expected, "{case}: {found:?}");
                let compiled = u32::from(expected.is_some_and(|(tier, _)| tier == Tier::Compiled));
                assert_eq!(maker.compiled.load(Ordering::Relaxed), compiled, "{case}");
                seen[expected.map_or(0, |(tier, _)| tier as usize)] += 1;
                // What was compiled is there for the next one, whatever lay there before.
                let again = serve(&supply, KERNEL).ok().map(|(tier, ..)| tier);
                let expected = expected.map(|(tier, _)| match tier {
                    Tier::Compiled if state != Kept::Nowhere => Tier::Cached,
                    tier => tier,
                });
                assert_eq!(again, expected, "{case}, again");
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }

    #[test]
    fn what_is_compiled_is_this_kernel_for_this_device() {
        let maker = toy((13, 0), false);
        let (_, _, bytes) = serve(&supply(Some(&maker), 90), KERNEL).unwrap();
        let options = "-DCCL_ONLY_DTYPE=f32 -DCCL_ONLY_OP=sum -DCCL_ONLY_PROTOCOL=simple";
        assert_eq!(String::from_utf8(bytes).unwrap(), format!("sm_90 --std=c++17 {options}"));
    }

    #[test]
    fn keys_differ_in_all_that_code_is_made_from() {
        let unit = |kernel| Unit::of(kernel).unwrap();
        let base = unit(KERNEL);
        let mut header = base.clone();
        header.headers[0].1 = "// another text";
        let mut option = base.clone();
        option.options.push("-DCCL_MORE".to_owned());
        let other = unit("ccl_interpret_f32_sum_ll");
        let keys = [
            key(&base, Target::Machine(90), (13, 0)),
            key(&base, Target::Machine(80), (13, 0)),
            key(&base, Target::Portable(90), (13, 0)),
            key(&base, Target::Machine(90), (13, 1)),
            key(&header, Target::Machine(90), (13, 0)),
            key(&option, Target::Machine(90), (13, 0)),
            key(&other, Target::Machine(90), (13, 0)),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert_eq!(keys.iter().position(|other| other == one), Some(index));
        }
        assert_eq!(keys[0], key(&base, Target::Machine(90), (13, 0)));
    }

    #[test]
    fn a_driver_gets_no_text_that_is_newer_than_it() {
        let newer = toy((13, 2), false);
        let target = |capability, driver_version| {
            let supply = Supply { driver_version, ..supply(Some(&newer), capability) };
            serve(&supply, KERNEL).map(|(_, target, _)| target.unwrap())
        };
        assert_eq!(target(90, 13_000), Ok(Target::Machine(90)));
        assert_eq!(target(130, 13_020), Ok(Target::Portable(90)));
        let said = target(130, 13_000).unwrap_err();
        assert!(said.contains("Toy makes nothing that sm_130 runs under this driver"), "{said}");
    }

    #[test]
    fn what_a_setting_names_is_taken_and_nothing_else() {
        let (folder, maker) = (tempfile::tempdir().unwrap(), toy((13, 0), false));
        let named = |path: PathBuf| Supply {
            named: Some(path),
            embedded: embedding(&[90]),
            ..supply(Some(&maker), 90)
        };
        let file = folder.path().join("interpret.f32.ptx");
        std::fs::write(&file, "text").unwrap();
        for path in [file, folder.path().to_owned()] {
            assert_eq!(serve(&named(path), KERNEL), Ok((Tier::Named, None, b"text".to_vec())));
        }
        let said = serve(&named(folder.path().to_owned()), "ccl_interpret_f16_sum_ll").unwrap_err();
        assert!(said.contains("expected interpret.f16.cubin"), "{said}");
        let said = serve(&named(folder.path().join("none")), KERNEL).unwrap_err();
        assert!(said.contains("CCL_CUDA_IMAGE") && said.contains("No such file"), "{said}");
        assert_eq!(maker.compiled.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn when_nobody_serves_one_error_says_what_was_looked_for() {
        let maker = toy((13, 0), true);
        let embedded = Supply { embedded: embedding(&[90]), ..supply(None, 100) };
        let said = [
            serve(&supply(None, 90), KERNEL),
            serve(&embedded, KERNEL),
            serve(&embedded, "ccl_interpret_f16_sum_simple"),
            serve(&supply(Some(&maker), 90), KERNEL),
            serve(&supply(Some(&maker), 90), "ccl_other"),
        ]
        .map(Result::unwrap_err);
        let expected = [
            "expected code of ccl_interpret_f32_sum_simple for sm_90, found none: this build embeds nothing; no NVRTC: \
             libtoy.so cannot be loaded (not there)",
            "what this build embeds is not for sm_100; no NVRTC",
            "this build embeds other kernels only; no NVRTC",
            "this build embeds nothing; Toy failed: error in line 7",
            "this build embeds nothing; no source holds ccl_other",
        ];
        for (said, expected) in said.iter().zip(expected) {
            assert!(said.contains(expected) && said.contains("CCL_NVRTC_LIBRARY"), "{said}");
        }
    }

    const KERNEL: &str = "ccl_interpret_f32_sum_simple";
}
