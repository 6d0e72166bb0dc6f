//! The driver's codes.

/// What an entry answers: nothing to say, or a code.
pub(crate) type Answer<T = ()> = Result<T, i32>;

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_IMAGE: i32 = 200;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const MAP_FAILED: i32 = 205;
pub(crate) const OPERATING_SYSTEM: i32 = 304;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
pub(crate) const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
pub(crate) const PEER_ALREADY_ENABLED: i32 = 704;
pub(crate) const PEER_NOT_ENABLED: i32 = 705;
pub(crate) const ALREADY_REGISTERED: i32 = 712;
pub(crate) const NOT_REGISTERED: i32 = 713;
pub(crate) const LAUNCH_FAILED: i32 = 719;
pub(crate) const TOO_LARGE: i32 = 720;
pub(crate) const NOT_PERMITTED: i32 = 800;
pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
pub(crate) const CAPTURE_INVALIDATED: i32 = 901;
pub(crate) const CAPTURE_MERGE: i32 = 902;
pub(crate) const CAPTURE_UNMATCHED: i32 = 903;
pub(crate) const CAPTURE_UNJOINED: i32 = 904;
pub(crate) const CAPTURE_ISOLATION: i32 = 905;
pub(crate) const CAPTURE_IMPLICIT: i32 = 906;
pub(crate) const CAPTURED_EVENT: i32 = 907;
pub(crate) const WRONG_THREAD: i32 = 908;
pub(crate) const UPDATE_FAILURE: i32 = 910;
pub(crate) const UNKNOWN: i32 = 999;

/// Whether every call after it fails too.
pub(crate) fn is_sticky(code: i32) -> bool {
    matches!(code, 214 | 220 | 700 | 702 | 710 | 714..=719)
}

/// The name of a code, ending with a zero; nothing for codes that this driver does not know.
pub(crate) fn name(code: i32) -> Option<&'static str> {
    Some(match code {
        0 => "CUDA_SUCCESS\0",
        1 => "CUDA_ERROR_INVALID_VALUE\0",
        2 => "CUDA_ERROR_OUT_OF_MEMORY\0",
        3 => "CUDA_ERROR_NOT_INITIALIZED\0",
        34 => "CUDA_ERROR_STUB_LIBRARY\0",
        100 => "CUDA_ERROR_NO_DEVICE\0",
        101 => "CUDA_ERROR_INVALID_DEVICE\0",
        200 => "CUDA_ERROR_INVALID_IMAGE\0",
        201 => "CUDA_ERROR_INVALID_CONTEXT\0",
        205 => "CUDA_ERROR_MAP_FAILED\0",
        304 => "CUDA_ERROR_OPERATING_SYSTEM\0",
        400 => "CUDA_ERROR_INVALID_HANDLE\0",
        500 => "CUDA_ERROR_NOT_FOUND\0",
        600 => "CUDA_ERROR_NOT_READY\0",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS\0",
        701 => "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\0",
        704 => "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0",
        705 => "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED\0",
        712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0",
        713 => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0",
        719 => "CUDA_ERROR_LAUNCH_FAILED\0",
        720 => "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE\0",
        800 => "CUDA_ERROR_NOT_PERMITTED\0",
        801 => "CUDA_ERROR_NOT_SUPPORTED\0",
        900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0",
        901 => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
        902 => "CUDA_ERROR_STREAM_CAPTURE_MERGE\0",
        903 => "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0",
        904 => "CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0",
        905 => "CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0",
        906 => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0",
        907 => "CUDA_ERROR_CAPTURED_EVENT\0",
        908 => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD\0",
        910 => "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE\0",
        999 => "CUDA_ERROR_UNKNOWN\0",
        _ => return None,
    })
}
