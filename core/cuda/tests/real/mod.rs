//! The real NVRTC, where there is one.

use std::path::PathBuf;

use ccl_cuda::Nvrtc;

/// The one that a setting names, else that of `scripts/setup`, else the system's. Says so if there is none.
pub(crate) fn nvrtc(test: &str) -> Option<Nvrtc> {
    let named = std::env::var_os("CCL_NVRTC_LIBRARY").map(PathBuf::from);
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("venvs/cuda/lib");
    let pythons = std::fs::read_dir(target).into_iter().flatten().flatten();
    let wheels = pythons.map(|python| python.path().join("site-packages/nvidia/cu13/lib/libnvrtc.so.13"));
    let system = ["libnvrtc.so.13", "libnvrtc.so.12"].map(PathBuf::from);
    let found = named.into_iter().chain(wheels).chain(system).find_map(|place| Nvrtc::load(&place).ok());
    if found.is_none() {
        eprintln!(
            "\n*** SKIPPED {test}: no NVRTC; let scripts/setup install it, or name it in CCL_NVRTC_LIBRARY\n"
        );
    }
    found
}
