//! The headers compile as C11 and C++11, also together, and mean the same as the Rust types: every
//! size, every offset, every constant.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use ccl_plugin::c::*;
use ccl_plugin::env::c::*;
use ccl_plugin::profiler::c::*;
use ccl_plugin::profiler::{Kind, StateKind};
use ccl_plugin::tuner::c::*;
use ccl_plugin::{CclErrorV1, CclHostV1, CclMemoryV1, CclNetPropertiesV1, CclNetV1, CclSettingV1, Code};

/// Static assertions that the compiler checks against Rust's numbers.
fn assertions() -> String {
    let mut source = String::from("#include <stddef.h>\n#include \"ccl_net.h\"\n");
    let mut equal = |left: String, right: usize| {
        writeln!(source, "ASSERT({left} == {right}, \"{left} is {right} in Rust\");").unwrap();
    };
    macro_rules! layout {
        ($rust:ty, $c:literal: $($field:ident)*) => {
            equal(format!("sizeof({})", $c), size_of::<$rust>());
            $( equal(format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($rust, $field)); )*
        };
    }
    layout!(CclHostV1, "cclHost_v1_t": size version context enabled log);
    layout!(CclSettingV1, "cclSetting_v1_t": key value);
    layout!(CclErrorV1, "cclError_v1_t": size code os_error reserved peer message);
    layout!(CclMemoryV1, "cclMemory_v1_t": size kind address bytes dmabuf_offset dmabuf_fd device);
    layout!(CclNetPropertiesV1, "cclNetProperties_v1_t": size memory_kinds flags port guid max_message_bytes
        speed_mbps latency_ns max_comms max_recvs max_requests rail plane reserved name pci_path);
    layout!(CclNetV1, "cclNet_v1_t": size version name init finalize last_error devices properties listen accept
        close_listen connect poll_connect close_connect reg_mr dereg_mr isend irecv test_send test_recv close_send
        close_recv test_sends test_recvs flush abort export_mr put get signal turn isend_more watch isend_from);
    layout!(CclWatchV1, "cclWatch_v1_t": descriptor events reserved);
    for (name, value) in [
        ("CCL_NET_VERSION", NET_VERSION as usize),
        ("CCL_NET_HANDLE_BYTES", HANDLE_BYTES),
        ("CCL_NET_KEY_BYTES", KEY_BYTES),
        ("CCL_NET_MAX_RECVS", MAX_RECVS),
        ("CCL_NET_HOST", MEMORY_HOST as usize),
        ("CCL_NET_CUDA", MEMORY_CUDA as usize),
        ("CCL_NET_DMABUF", MEMORY_DMABUF as usize),
        ("CCL_NET_NEEDS_FLUSH", FLAG_NEEDS_FLUSH as usize),
        ("CCL_NET_ONE_SIDED", FLAG_ONE_SIDED as usize),
        ("CCL_NET_ANY_MEMORY", FLAG_ANY_MEMORY as usize),
        ("CCL_NET_SEND", SIDE_SEND as usize),
        ("CCL_NET_RECV", SIDE_RECV as usize),
        ("CCL_LOG_ERROR", LOG_ERROR as usize),
        ("CCL_LOG_WARN", LOG_WARN as usize),
        ("CCL_LOG_INFO", LOG_INFO as usize),
        ("CCL_LOG_DEBUG", LOG_DEBUG as usize),
        ("CCL_LOG_TRACE", LOG_TRACE as usize),
        ("CCL_NET_OK", Code::OK.0 as usize),
        ("CCL_NET_INVALID", Code::INVALID.0 as usize),
        ("CCL_NET_SYSTEM", Code::SYSTEM.0 as usize),
        ("CCL_NET_REMOTE", Code::REMOTE.0 as usize),
        ("CCL_NET_TIMEOUT", Code::TIMEOUT.0 as usize),
        ("CCL_NET_TOO_LONG", Code::TOO_LONG.0 as usize),
        ("CCL_NET_UNSUPPORTED", Code::UNSUPPORTED.0 as usize),
        ("CCL_NET_NO_DEVICE", Code::NO_DEVICE.0 as usize),
        ("CCL_NET_EXHAUSTED", Code::EXHAUSTED.0 as usize),
        ("CCL_NET_ABORTED", Code::ABORTED.0 as usize),
        ("CCL_NET_INTERNAL", Code::INTERNAL.0 as usize),
        ("CCL_NET_PANIC", Code::PANIC.0 as usize),
    ] {
        equal(name.to_string(), value);
    }
    source
}

/// The same of the profiler's header.
fn profiler_assertions() -> String {
    let mut source =
        String::from("#include <stddef.h>\n#include \"ccl_net.h\"\n#include \"ccl_profiler.h\"\n");
    let mut equal = |left: String, right: usize| {
        writeln!(source, "ASSERT({left} == {right}, \"{left} is {right} in Rust\");").unwrap();
    };
    macro_rules! layout {
        ($rust:ty, $c:literal: $($field:ident $(= $name:literal)?)*) => {
            equal(format!("sizeof({})", $c), size_of::<$rust>());
            $(
                let name = [$($name,)? stringify!($field)][0];
                equal(format!("offsetof({}, {name})", $c), offset_of!($rust, $field));
            )*
        };
    }
    layout!(CclHostV1, "cclHost_v1_t": size version context enabled log);
    layout!(CclProfilerCommV1, "cclProfilerComm_v1_t": size rank nranks nnodes comm_id process name);
    layout!(CclProfilerCallV1, "cclProfilerCall_v1_t": func dtype op algorithm protocol path count bytes sequence
        call_id send recv chunk_bytes root peer channels in_place);
    layout!(CclProfilerGroupV1, "cclProfilerGroup_v1_t": depth reserved);
    layout!(CclProfilerProxyOpV1, "cclProfilerProxyOp_v1_t": path chunk_bytes channel peer is_send process);
    layout!(CclProfilerProxyStepV1, "cclProfilerProxyStep_v1_t": step bytes);
    layout!(CclProfilerEventV1, "cclProfilerEvent_v1_t": size kind id time_ns parent parent_id parent_kind rank of);
    layout!(CclProfilerStateV1, "cclProfilerState_v1_t": size state time_ns bytes count);
    layout!(CclProfilerSummaryV1, "cclProfilerSummary_v1_t": size reserved time_ns started refused dropped_events
        dropped_states);
    layout!(CclProfilerV1, "cclProfiler_v1_t": size version name init start_event = "startEvent"
        stop_event = "stopEvent" record_event_state = "recordEventState" finalize);
    equal("CCL_PROFILER_VERSION".to_string(), PROFILER_VERSION as usize);
    for kind in Kind::ALL {
        let name = format!("CCL_EVENT_{}", upper(&format!("{kind:?}")));
        equal(format!("CCL_EVENT_BIT({name})"), kind.bit() as usize);
        equal(name, kind as usize);
    }
    for state in StateKind::ALL {
        equal(format!("CCL_STATE_{}", upper(&format!("{state:?}"))), state as usize);
    }
    source
}

/// The same of the header of env plugins.
fn env_assertions() -> String {
    let mut source =
        String::from("#include <stddef.h>\n#include \"ccl_profiler.h\"\n#include \"ccl_env.h\"\n");
    let mut equal = |left: String, right: usize| {
        writeln!(source, "ASSERT({left} == {right}, \"{left} is {right} in Rust\");").unwrap();
    };
    equal("sizeof(cclHost_v1_t)".to_string(), size_of::<CclHostV1>());
    equal("sizeof(cclEnv_v1_t)".to_string(), size_of::<CclEnvV1>());
    for (field, offset) in [
        ("size", offset_of!(CclEnvV1, size)),
        ("version", offset_of!(CclEnvV1, version)),
        ("name", offset_of!(CclEnvV1, name)),
        ("init", offset_of!(CclEnvV1, init)),
        ("getEnv", offset_of!(CclEnvV1, get_env)),
        ("finalize", offset_of!(CclEnvV1, finalize)),
    ] {
        equal(format!("offsetof(cclEnv_v1_t, {field})"), offset);
    }
    equal("CCL_ENV_VERSION".to_string(), ENV_VERSION as usize);
    source
}

/// The same of the tuner's header.
fn tuner_assertions() -> String {
    let mut source = String::from("#include <stddef.h>\n#include \"ccl_tuner.h\"\n#include \"ccl_net.h\"\n");
    let mut equal = |left: String, right: usize| {
        writeln!(source, "ASSERT({left} == {right}, \"{left} is {right} in Rust\");").unwrap();
    };
    macro_rules! layout {
        ($rust:ty, $c:literal: $($field:ident)*) => {
            equal(format!("sizeof({})", $c), size_of::<$rust>());
            $( equal(format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($rust, $field)); )*
        };
    }
    layout!(CclHostV1, "cclHost_v1_t": size version context enabled log);
    layout!(CclSettingV1, "cclSetting_v1_t": key value);
    layout!(CclTunerCommV1, "cclTunerComm_v1_t": size rank nranks nnodes comm_id name reach min_node_ranks
        max_node_ranks max_channels reserved chunk_bytes);
    layout!(CclTunerCallV1, "cclTunerCall_v1_t": size pipelined collective dtype bytes least_bytes most_bytes mapped
        reserved);
    layout!(CclTunerCandidateV1, "cclTunerCandidate_v1_t": size channels algorithm protocol cost_ns chunk_bytes);
    layout!(CclTunerV1, "cclTuner_v1_t": size version name init advise finalize);
    equal("CCL_TUNER_VERSION".to_string(), TUNER_VERSION as usize);
    source
}

/// `ProxyOp` as the header spells it: `PROXY_OP`.
fn upper(name: &str) -> String {
    let breaks = name.char_indices().flat_map(|(at, letter)| {
        let gap = at > 0 && letter.is_ascii_uppercase();
        gap.then_some('_').into_iter().chain([letter.to_ascii_uppercase()])
    });
    breaks.collect()
}

fn compile(
    compiler: &str,
    standard: &str,
    assert: &str,
    extension: &str,
    source: &str,
) -> Result<(), String> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("header.{extension}"));
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
        .args([&format!("-DASSERT={assert}"), "-I"])
        .args([&include, &file])
        .output()
        .map_err(|error| format!("{compiler} does not start: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn the_header_is_the_rust_types() {
    let source = assertions();
    compile("cc", "-std=c11", "_Static_assert", "c", &source).unwrap();
    compile("c++", "-std=c++11", "static_assert", "cc", &source).unwrap();
}

#[test]
fn the_profiler_header_is_the_rust_types() {
    let source = profiler_assertions();
    compile("cc", "-std=c11", "_Static_assert", "profiler.c", &source).unwrap();
    compile("c++", "-std=c++11", "static_assert", "profiler.cc", &source).unwrap();
}

#[test]
fn the_header_of_env_plugins_is_the_rust_types() {
    let source = env_assertions();
    compile("cc", "-std=c11", "_Static_assert", "env.c", &source).unwrap();
    compile("c++", "-std=c++11", "static_assert", "env.cc", &source).unwrap();
}

#[test]
fn the_tuner_header_is_the_rust_types() {
    let source = tuner_assertions();
    compile("cc", "-std=c11", "_Static_assert", "tuner.c", &source).unwrap();
    compile("c++", "-std=c++11", "static_assert", "tuner.cc", &source).unwrap();
}

#[test]
fn a_difference_would_be_noticed() {
    let changed =
        assertions().replacen("offsetof(cclNet_v1_t, isend) == ", "offsetof(cclNet_v1_t, isend) == 8 + ", 1);
    let error = compile("cc", "-std=c11", "_Static_assert", "changed.c", &changed).unwrap_err();
    assert!(error.contains("offsetof(cclNet_v1_t, isend)"), "{error}");
}
