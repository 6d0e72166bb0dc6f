//! What a line says: the fields of events and spans, and the subsystem of a module.

use std::fmt::{self, Write};

use tracing::Level as EventLevel;
use tracing::field::{Field, Visit};

use crate::config::{Level, Subsystem};

/// The fields of an event or a span.
#[derive(Default)]
pub(super) struct Fields {
    /// The field `rank`.
    pub(super) rank: Option<String>,
    /// The message, and after it the other fields.
    pub(super) text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "rank" => {
                self.rank = Some(format!("{value:?}"));
                Ok(())
            }
            "message" => {
                let others = std::mem::take(&mut self.text);
                write!(self.text, "{value:?}{others}")
            }
            name => write!(self.text, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // Without quotes.
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// The word for an event's level, and from which of ours on it is shown.
pub(super) fn word(level: EventLevel) -> (&'static str, Level) {
    match level {
        EventLevel::ERROR => ("ERROR", Level::Warn),
        EventLevel::WARN => ("WARN", Level::Warn),
        EventLevel::INFO => ("INFO", Level::Info),
        _ => ("TRACE", Level::Trace),
    }
}

/// Whether an event with this target is ours.
pub(super) fn is_ours(target: &str) -> bool {
    let root = target.split("::").next().unwrap_or(target);
    root == "ccl" || root.starts_with("ccl_")
}

/// The subsystem of a module: the longest beginning in the table decides.
pub(super) fn subsystem(target: &str) -> Subsystem {
    let fits = |module: &str| {
        target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let longest = MODULES.iter().filter(|(module, _)| fits(module)).max_by_key(|(module, _)| module.len());
    longest.map_or(Subsystem::Init, |&(_, subsystem)| subsystem)
}

/// Modules and their subsystems. Those that are not here are INIT.
const MODULES: [(&str, Subsystem); 27] = [
    ("ccl::bootstrap", Subsystem::Bootstrap),
    ("ccl::comm", Subsystem::Init),
    ("ccl::comm::abort", Subsystem::Destroy),
    ("ccl::comm::tuner", Subsystem::Tuning),
    ("ccl::config", Subsystem::Env),
    ("ccl::discover", Subsystem::Graph),
    ("ccl::discover::interfaces", Subsystem::Bootstrap),
    ("ccl::discover::launcher", Subsystem::Init),
    ("ccl::exec", Subsystem::Coll),
    ("ccl::exec::proxy", Subsystem::Proxy),
    ("ccl::memory", Subsystem::Alloc),
    ("ccl::memory::register", Subsystem::Reg),
    ("ccl::memory::window", Subsystem::Reg),
    ("ccl::observe", Subsystem::Profile),
    ("ccl::observe::watch", Subsystem::Ras),
    ("ccl::plans", Subsystem::Tuning),
    ("ccl::transport", Subsystem::Init),
    ("ccl::transport::loopback", Subsystem::Shm),
    ("ccl::transport::net", Subsystem::Net),
    ("ccl::transport::p2p", Subsystem::P2p),
    ("ccl::transport::shm", Subsystem::Shm),
    ("ccl::transport::switch", Subsystem::Nvls),
    ("ccl_capi", Subsystem::Call),
    ("ccl_nccl", Subsystem::Call),
    ("ccl_net_socket", Subsystem::Net),
    ("ccl_plan", Subsystem::Tuning),
    ("ccl_plugin_host", Subsystem::Net),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_belong_to_the_longest_beginning() {
        assert_eq!(subsystem("ccl::transport::shm::segment"), Subsystem::Shm);
        assert_eq!(subsystem("ccl::transport::shmoo"), Subsystem::Init);
        assert_eq!(subsystem("ccl::observe::watch"), Subsystem::Ras);
        assert_eq!(subsystem("ccl_net_socket::listen"), Subsystem::Net);
        assert_eq!(subsystem("ccl"), Subsystem::Init);
    }

    #[test]
    fn only_our_crates_are_ours() {
        assert!(is_ours("ccl") && is_ours("ccl::comm") && is_ours("ccl_net_socket::listen"));
        assert!(!is_ours("cclx") && !is_ours("tokio") && !is_ours("app::ccl"));
    }
}
