//! The exported symbols of a Rust plugin.

use abi_stable::declare_root_module_statics;
use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;

use crate::c::{CclNetV1, CclNetV1Ref};
use crate::env::Env;
use crate::env::c::{CclEnvV1, CclEnvV1Ref};
use crate::net::Net;
use crate::profiler::Profiler;
use crate::profiler::c::{CclProfilerV1, CclProfilerV1Ref};
use crate::tuner::Tuner;
use crate::tuner::c::{CclTunerV1, CclTunerV1Ref};

/// Exports a [`Net`] as a plugin: the table `cclNet_v1`, and an `abi_stable` root module by which
/// the host checks that both sides were compiled with the same layout.
///
/// Write it once, in the root of a crate whose only crate type is `cdylib`.
#[macro_export]
macro_rules! export_net {
    ($net:ty) => {
        /// The table of this network.
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static cclNet_v1: $crate::CclNetV1 = $crate::__exported_table::<$net>();

        #[doc(hidden)]
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static _1as_0lib_1header_0root_bmodule_bloader: $crate::abi_stable::library::LibHeader = {
            extern "C" fn module() -> $crate::abi_stable::library::RootModuleResult {
                $crate::abi_stable::library::__call_root_module_loader($crate::__root_module::<$net>)
            }
            // SAFETY: `module` returns the root module type named here.
            unsafe {
                $crate::abi_stable::library::LibHeader::from_constructor::<$crate::__NetModule>(
                    module,
                    $crate::abi_stable::library::CheckTypeLayout::Yes,
                )
            }
        };
    };
}

/// Exports a [`Profiler`] as a plugin: the table `cclProfiler_v1`, and an `abi_stable` root module by
/// which the host checks that both sides were compiled with the same layout.
///
/// Write it once, in the root of a crate whose only crate type is `cdylib`, which exports nothing else.
#[macro_export]
macro_rules! export_profiler {
    ($profiler:ty) => {
        /// The table of this profiler.
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static cclProfiler_v1: $crate::profiler::c::CclProfilerV1 =
            $crate::__exported_profiler::<$profiler>();

        #[doc(hidden)]
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static _1as_0lib_1header_0root_bmodule_bloader: $crate::abi_stable::library::LibHeader = {
            extern "C" fn module() -> $crate::abi_stable::library::RootModuleResult {
                $crate::abi_stable::library::__call_root_module_loader($crate::__profiler_module::<$profiler>)
            }
            // SAFETY: `module` returns the root module type named here.
            unsafe {
                $crate::abi_stable::library::LibHeader::from_constructor::<$crate::__ProfilerModule>(
                    module,
                    $crate::abi_stable::library::CheckTypeLayout::Yes,
                )
            }
        };
    };
}

/// Exports an [`Env`] as a plugin: the table `cclEnv_v1`, and an `abi_stable` root module by which the host checks that
/// both sides were compiled with the same layout.
///
/// Write it once, in the root of a crate whose only crate type is `cdylib`, which exports nothing else.
#[macro_export]
macro_rules! export_env {
    ($env:ty) => {
        /// The table of this source of settings.
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static cclEnv_v1: $crate::env::c::CclEnvV1 = $crate::__exported_env::<$env>();

        #[doc(hidden)]
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static _1as_0lib_1header_0root_bmodule_bloader: $crate::abi_stable::library::LibHeader = {
            extern "C" fn module() -> $crate::abi_stable::library::RootModuleResult {
                $crate::abi_stable::library::__call_root_module_loader($crate::__env_module::<$env>)
            }
            // SAFETY: `module` returns the root module type named here.
            unsafe {
                $crate::abi_stable::library::LibHeader::from_constructor::<$crate::__EnvModule>(
                    module,
                    $crate::abi_stable::library::CheckTypeLayout::Yes,
                )
            }
        };
    };
}

/// Exports a [`Tuner`] as a plugin: the table `cclTuner_v1`, and an `abi_stable` root module by which the host checks
/// that both sides were compiled with the same layout.
///
/// Write it once, in the root of a crate whose only crate type is `cdylib`, which exports nothing else.
#[macro_export]
macro_rules! export_tuner {
    ($tuner:ty) => {
        /// The table of this tuner.
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static cclTuner_v1: $crate::tuner::c::CclTunerV1 = $crate::__exported_tuner::<$tuner>();

        #[doc(hidden)]
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static _1as_0lib_1header_0root_bmodule_bloader: $crate::abi_stable::library::LibHeader = {
            extern "C" fn module() -> $crate::abi_stable::library::RootModuleResult {
                $crate::abi_stable::library::__call_root_module_loader($crate::__tuner_module::<$tuner>)
            }
            // SAFETY: `module` returns the root module type named here.
            unsafe {
                $crate::abi_stable::library::LibHeader::from_constructor::<$crate::__TunerModule>(
                    module,
                    $crate::abi_stable::library::CheckTypeLayout::Yes,
                )
            }
        };
    };
}

#[doc(hidden)]
pub const fn __exported_table<N: Net>() -> CclNetV1 {
    crate::net::exported_table::<N>()
}

#[doc(hidden)]
pub fn __root_module<N: Net>() -> CclNetV1Ref {
    // Once per library; it is as long-lived as the library, which is never unloaded.
    crate::net::exported_table::<N>().leak_into_prefix()
}

impl RootModule for CclNetV1Ref {
    declare_root_module_statics! {CclNetV1Ref}
    const BASE_NAME: &'static str = "ccl_net";
    const NAME: &'static str = "ccl_net";
    // The contract's version, not the crate's: a release that leaves the table alone loads old plugins.
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

#[doc(hidden)]
pub const fn __exported_profiler<P: Profiler>() -> CclProfilerV1 {
    crate::profiler::exported_table::<P>()
}

#[doc(hidden)]
pub fn __profiler_module<P: Profiler>() -> CclProfilerV1Ref {
    // Once per library, as in `__root_module`.
    crate::profiler::exported_table::<P>().leak_into_prefix()
}

impl RootModule for CclProfilerV1Ref {
    declare_root_module_statics! {CclProfilerV1Ref}
    const BASE_NAME: &'static str = "ccl_profiler";
    const NAME: &'static str = "ccl_profiler";
    // The contract's version, as for networks.
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

#[doc(hidden)]
pub const fn __exported_env<E: Env>() -> CclEnvV1 {
    crate::env::exported_table::<E>()
}

#[doc(hidden)]
pub fn __env_module<E: Env>() -> CclEnvV1Ref {
    // Once per library, as in `__root_module`.
    crate::env::exported_table::<E>().leak_into_prefix()
}

impl RootModule for CclEnvV1Ref {
    declare_root_module_statics! {CclEnvV1Ref}
    const BASE_NAME: &'static str = "ccl_env";
    const NAME: &'static str = "ccl_env";
    // The contract's version, as for networks.
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

#[doc(hidden)]
pub const fn __exported_tuner<T: Tuner>() -> CclTunerV1 {
    crate::tuner::exported_table::<T>()
}

#[doc(hidden)]
pub fn __tuner_module<T: Tuner>() -> CclTunerV1Ref {
    // Once per library, as in `__root_module`.
    crate::tuner::exported_table::<T>().leak_into_prefix()
}

impl RootModule for CclTunerV1Ref {
    declare_root_module_statics! {CclTunerV1Ref}
    const BASE_NAME: &'static str = "ccl_tuner";
    const NAME: &'static str = "ccl_tuner";
    // The contract's version, as for networks.
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}
