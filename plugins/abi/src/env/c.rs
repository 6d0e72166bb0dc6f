//! The C side of the contract of env plugins, field for field what `plugins/include/ccl_env.h` declares.
//!
//! The header has the prose. A test compiles it with the C compiler and compares sizes and offsets.

use std::ffi::{c_char, c_void};

use abi_stable::StableAbi;

use crate::c::CclHostV1;

/// The version of the contract these types describe.
pub const ENV_VERSION: u32 = 1;
/// The symbol an env plugin exports, a [`CclEnvV1`].
pub const ENV_SYMBOL: &std::ffi::CStr = c"cclEnv_v1";

/// The entry `init`: the host's table, the release of ccl, where the context goes.
pub type InitEnv =
    unsafe extern "C" fn(host: *const CclHostV1, release: *const c_char, context: *mut *mut c_void) -> i32;

/// An env plugin: the table exported as `cclEnv_v1`.
///
/// Grows only at its end. All entries are required.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
#[sabi(kind(Prefix(prefix_ref = CclEnvV1Ref, prefix_fields = CclEnvV1Fields)))]
#[sabi(missing_field(panic))]
pub struct CclEnvV1 {
    /// Bytes of this table as the plugin knows it.
    pub size: u32,
    /// [`ENV_VERSION`].
    pub version: u32,
    /// Name of the plugin, NUL-terminated, valid as long as the library is loaded.
    pub name: *const c_char,
    /// Makes the plugin ready; returns a [`Code`](crate::Code).
    #[sabi(unsafe_opaque_field)]
    pub init: Option<InitEnv>,
    /// The value of a setting, valid until `finalize` unless it is `found` itself; null for none.
    #[sabi(unsafe_opaque_field)]
    pub get_env: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            found: *const c_char,
        ) -> *const c_char,
    >,
    /// Ends the context; returns a code.
    #[sabi(last_prefix_field)]
    #[sabi(unsafe_opaque_field)]
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
}

// SAFETY: the table is only ever read, and its name points to a static string, by the contract.
unsafe impl Sync for CclEnvV1 {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for CclEnvV1 {}
// SAFETY: the fields of the table above, for the layout check.
unsafe impl Sync for CclEnvV1Fields {}
// SAFETY: as above.
unsafe impl Send for CclEnvV1Fields {}

impl CclEnvV1 {
    /// A table with nothing in it but its size and version.
    pub const EMPTY: CclEnvV1 = CclEnvV1 {
        size: size_of::<CclEnvV1>() as u32,
        version: ENV_VERSION,
        name: c"".as_ptr(),
        init: None,
        get_env: None,
        finalize: None,
    };
}
