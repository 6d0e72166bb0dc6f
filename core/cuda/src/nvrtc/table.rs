//! NVRTC's functions that we call, each with our own signature, as the driver's table has them.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{NvrtcAbsent, NvrtcError};

/// A program of NVRTC's.
pub(super) type Program = *mut c_void;

macro_rules! symbols {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The functions found in one library; all of them were there before 12.0.
        #[allow(non_snake_case)]
        pub(super) struct Table {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            nvrtcGetErrorString: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        /// Every function of NVRTC that this crate calls.
        pub const NVRTC_SYMBOLS: &[&str] = &[$(stringify!($name),)* "nvrtcGetErrorString"];

        #[allow(non_snake_case)]
        impl Table {
            /// Finds every function.
            ///
            /// # Errors
            ///
            /// The first that the library lacks.
            pub(super) fn find(library: &libloading::Library, file: &str) -> Result<Self, NvrtcAbsent> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the signature beside the name is the one that NVRTC documents for it.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| missing(file, stringify!($name)))?
                    },)*
                    nvrtcGetErrorString: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(b"nvrtcGetErrorString\0") };
                        *found.map_err(|_| missing(file, "nvrtcGetErrorString"))?
                    },
                })
            }

            $(
                /// Calls NVRTC's function of this name and checks its code.
                ///
                /// # Safety
                ///
                /// What NVRTC asks of this function's arguments.
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), NvrtcError> {
                    // SAFETY: the caller keeps NVRTC's contract; the library is never unloaded.
                    let code = unsafe { (self.$name)($($argument),*) };
                    self.check(stringify!($name), code)
                }
            )*
        }
    };
}

symbols! {
    nvrtcVersion(major: *mut c_int, minor: *mut c_int);
    nvrtcGetNumSupportedArchs(count: *mut c_int);
    nvrtcGetSupportedArchs(archs: *mut c_int);
    nvrtcCreateProgram(
        program: *mut Program, text: *const c_char, name: *const c_char,
        count: c_int, headers: *const *const c_char, names: *const *const c_char,
    );
    nvrtcDestroyProgram(program: *mut Program);
    nvrtcCompileProgram(program: Program, count: c_int, options: *const *const c_char);
    nvrtcGetPTXSize(program: Program, bytes: *mut usize);
    nvrtcGetPTX(program: Program, text: *mut c_char);
    nvrtcGetCUBINSize(program: Program, bytes: *mut usize);
    nvrtcGetCUBIN(program: Program, image: *mut c_char);
    nvrtcGetProgramLogSize(program: Program, bytes: *mut usize);
    nvrtcGetProgramLog(program: Program, text: *mut c_char);
}

impl Table {
    /// A code as a result.
    fn check(&self, call: &'static str, code: c_int) -> Result<(), NvrtcError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC takes any code.
        let words = unsafe { (self.nvrtcGetErrorString)(code) };
        let name = match words.is_null() {
            true => "a code unknown to this NVRTC".to_owned(),
            // SAFETY: NVRTC's words end with a zero and live as long as the library.
            false => unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned(),
        };
        Err(NvrtcError::Failed { call, code, name, log: String::new() })
    }
}

fn missing(library: &str, symbol: &'static str) -> NvrtcAbsent {
    NvrtcAbsent::MissingSymbol { library: library.to_owned(), symbol }
}
