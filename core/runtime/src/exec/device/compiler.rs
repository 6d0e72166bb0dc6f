//! The compiler that is loaded where a build embeds no kernels, and where it may be.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccl_cuda::{Nvrtc, NvrtcSource, NvrtcTarget};
use ccl_kernels::target::Target;
use ccl_kernels::unit::Unit;

/// What makes code of sources.
pub(super) trait Compiler {
    /// Its version: (13, 0).
    fn version(&self) -> (u32, u32);
    /// What it is called, and where it was found.
    fn name(&self) -> String;
    /// What it can make. Errors: in words.
    fn targets(&self) -> Result<Vec<Target>, String>;
    /// One kernel for one target, which takes seconds. Errors: what the compiler said.
    fn compile(&self, unit: &Unit, target: Target) -> Result<Vec<u8>, String>;
}

impl Compiler for Nvrtc {
    fn version(&self) -> (u32, u32) {
        self.version()
    }

    fn name(&self) -> String {
        let (major, minor) = self.version();
        format!("NVRTC {major}.{minor} ({})", self.file().display())
    }

    fn targets(&self) -> Result<Vec<Target>, String> {
        let known = self.capabilities().map_err(|error| error.to_string())?;
        Ok(known.into_iter().flat_map(|own| [Target::Machine(own), Target::Portable(own)]).collect())
    }

    fn compile(&self, unit: &Unit, target: Target) -> Result<Vec<u8>, String> {
        let source = NvrtcSource { name: unit.name, text: unit.text, headers: &unit.headers };
        let target = match target {
            Target::Machine(capability) => NvrtcTarget::Machine(capability),
            Target::Portable(capability) => NvrtcTarget::Portable(capability),
        };
        let made = self.compile(&source, target, &unit.options).map_err(|error| error.to_string())?;
        if !made.log.is_empty() {
            tracing::debug!(target: "ccl::exec", source = unit.name, log = made.log, "the compiler said");
        }
        Ok(made.image)
    }
}

/// Finds NVRTC: what the setting names, or else the first that can be loaded of those that serve a driver of this
/// version, as `cuDriverGetVersion` counts.
///
/// # Errors
///
/// In words: what was looked for, and why it was not to be had.
pub(super) fn find(setting: Option<&Path>, driver_version: u32) -> Result<Arc<dyn Compiler>, String> {
    let places = match setting {
        Some(off) if off.as_os_str() == NONE => return Err("CCL_NVRTC_LIBRARY is none".to_owned()),
        Some(named) => vec![named.to_owned()],
        None => places(driver_version / 1000, |name| std::env::var_os(name), std::env::current_exe().ok()),
    };
    let mut why = Vec::new();
    for place in places {
        match Nvrtc::load(&place) {
            Ok(nvrtc) if nvrtc.version().0 <= driver_version / 1000 => return Ok(Arc::new(nvrtc)),
            Ok(nvrtc) => {
                let (major, driver) = (nvrtc.version().0, driver_version / 1000);
                why.push(format!(
                    "{} makes code for drivers {major}, found driver {driver}",
                    nvrtc.file().display()
                ));
            }
            Err(absent) => why.push(absent.to_string()),
        }
    }
    Err(why.join("; "))
}

/// Where NVRTC may be, for a driver of this major version: newer ones make code that the driver does not take. First
/// what the process has loaded or the system finds, then CUDA's folders, then Python's packages.
fn places(
    driver_major: u32,
    variable: impl Fn(&str) -> Option<OsString>,
    program: Option<PathBuf>,
) -> Vec<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(folder);
    let homes: Vec<PathBuf> = homes.chain([PathBuf::from("/usr/local/cuda")]).collect();
    let python = program.and_then(|program| Some(program.parent()?.parent()?.to_owned()));
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(folder).chain(python);
    let prefixes: Vec<PathBuf> = prefixes.collect();
    let mut found = Vec::new();
    for major in (ccl_cuda::MINIMUM_NVRTC.0..=driver_major).rev() {
        let name = format!("libnvrtc.so.{major}");
        found.push(PathBuf::from(&name));
        let homes = homes.iter().flat_map(|home| ["lib64", "lib"].map(|lib| home.join(lib)));
        let packages = prefixes.iter().flat_map(|prefix| packages(prefix, major));
        let files = homes.chain(packages).map(|folder| folder.join(&name));
        found.extend(files.filter(|file| file.is_file()));
    }
    found
}

/// Where Python's and conda's packages put it below a prefix.
fn packages(prefix: &Path, major: u32) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let versions = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let pythons = versions.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
    let site = pythons.map(|python| python.path().join("site-packages/nvidia"));
    let parts = site.flat_map(|site| [site.join(format!("cu{major}/lib")), site.join("cuda_nvrtc/lib")]);
    parts.chain([lib.clone()]).collect()
}

const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_is_looked_for_where_it_is_installed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let files = [
            "cuda/lib64/libnvrtc.so.12",
            "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "conda/lib/libnvrtc.so.13",
            "usr/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "usr/lib/python3.12/site-packages/nvidia/cu14/lib/libnvrtc.so.14",
        ];
        for file in files {
            fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            fs::write(at(file), "").unwrap();
        }
        let variable = |name: &str| {
            let folder = [("CUDA_HOME", "cuda"), ("VIRTUAL_ENV", "venv"), ("CONDA_PREFIX", "conda")];
            let known = folder.iter().find(|(known, _)| *known == name)?;
            Some(at(known.1).into_os_string())
        };
        let found = |major| {
            let all = places(major, variable, Some(at("usr/bin/python3")));
            all.into_iter().filter(|place| !place.starts_with("/usr/local")).collect::<Vec<_>>()
        };
        let expected = |names: &[&str]| {
            let place = |name: &&str| if name.contains('/') { at(name) } else { PathBuf::from(name) };
            names.iter().map(place).collect::<Vec<_>>()
        };
        let older = expected(&["libnvrtc.so.12", files[0], files[2]]);
        assert_eq!(found(12), older);
        let newer = expected(&["libnvrtc.so.13", files[1], files[3], files[4]]);
        assert_eq!(found(13), [newer.clone(), older].concat());
        assert_eq!(found(14)[..2], expected(&["libnvrtc.so.14", files[5]]));
    }

    #[test]
    fn what_is_named_and_not_there_is_said() {
        let said = |setting: &str| find(Some(Path::new(setting)), 13_000).err().unwrap();
        assert_eq!(said("none"), "CCL_NVRTC_LIBRARY is none");
        assert!(said("/nowhere/libnvrtc.so.13").starts_with("/nowhere/libnvrtc.so.13 cannot be loaded ("));
    }
}
