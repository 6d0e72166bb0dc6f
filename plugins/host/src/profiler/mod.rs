//! Profilers, as safe types over the table.
//!
//! A [`ProfilerContext`] is used by one thread at a time and finalised once. Handles are checked: one
//! that is not open is not passed on, whatever the caller does.

mod context;
mod interest;
mod load;
mod nccl;
mod plugin;

pub use ccl_plugin::profiler::c::{
    CclProfilerCallV1, CclProfilerEventV1, CclProfilerGroupV1, CclProfilerOfV1, CclProfilerProxyOpV1,
    CclProfilerProxyStepV1, CclProfilerStateV1, CclProfilerSummaryV1,
};
pub use ccl_plugin::profiler::{Kind, StateKind};
pub use context::{Handle, ProfilerContext, Watched};
pub use interest::Interest;
pub use plugin::{ProfilerError, ProfilerPlugin};
