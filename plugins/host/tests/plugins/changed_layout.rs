//! A plugin compiled with another idea of the table: a field more in its middle, and so a name that
//! would be read from where there is none.
#![allow(non_upper_case_globals)]

use std::ffi::c_char;

use abi_stable::library::{LibHeader, RootModule, RootModuleResult};
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::{StableAbi, declare_root_module_statics};

/// The table as it is not.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = CclNetV1Ref, prefix_fields = CclNetV1Fields)))]
#[sabi(missing_field(panic))]
pub struct CclNetV1 {
    /// As it should be.
    pub size: u32,
    /// As it should be.
    pub version: u32,
    /// Not in the contract.
    pub surprise: u64,
    /// Elsewhere than the contract says.
    #[sabi(last_prefix_field)]
    pub name: *const c_char,
}

// SAFETY: never changed.
unsafe impl Sync for CclNetV1 {}
// SAFETY: as above.
unsafe impl Send for CclNetV1Fields {}
// SAFETY: as above.
unsafe impl Sync for CclNetV1Fields {}

const TABLE: CclNetV1 = CclNetV1 { size: 400, version: 1, surprise: 0xdead_beef, name: c"changed".as_ptr() };

/// The table, with another layout.
#[unsafe(no_mangle)]
pub static cclNet_v1: CclNetV1 = TABLE;

impl RootModule for CclNetV1Ref {
    declare_root_module_statics! {CclNetV1Ref}
    const BASE_NAME: &'static str = "ccl_net";
    const NAME: &'static str = "ccl_net";
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

/// What `abi_stable` looks for.
#[unsafe(no_mangle)]
pub static _1as_0lib_1header_0root_bmodule_bloader: LibHeader = {
    fn root() -> CclNetV1Ref {
        TABLE.leak_into_prefix()
    }
    extern "C" fn module() -> RootModuleResult {
        abi_stable::library::__call_root_module_loader(root)
    }
    // SAFETY: `module` returns the root module type named here.
    unsafe { LibHeader::from_constructor::<CclNetV1Ref>(module, abi_stable::library::CheckTypeLayout::Yes) }
};
