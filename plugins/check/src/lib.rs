//! Drives a plugin through every clause of its contract, and says which it keeps.
//!
//! A [`Clause`] is one promise of a header in `plugins/include`, and belongs to a [`Kind`] of plugins. [`judge`] holds a plugin to one of them in
//! this process; [`judge_apart`] does so in a process of its own, so that a plugin that crashes or hangs is
//! a verdict and not the end of the checker.
//!
//! ```
//! use ccl_plugin_check::{Kind, Net, Subject, Verdict, judge};
//! use ccl_plugin_host::NetPlugin;
//!
//! let load = || NetPlugin::linked(ccl_net_socket::table()).map_err(|error| error.to_string());
//! let subject = Subject::from(Net::new(load));
//! let verdict = judge(Kind::Net.clause("order").unwrap(), &subject);
//! assert!(matches!(verdict, Verdict::Ok(_)), "{verdict:?}");
//! ```
//!
//! Of networks both ends of every connection are in one process, on one device or two contexts of it. The checker keeps
//! the host's side of the contract to the letter, so that whatever goes wrong is the plugin's.
//!
//! What this crate does not do: measure how fast a plugin should be (it compares with a reference and says
//! the ratio), look at what goes over the wire, or check device memory, which needs a device.

mod breach;
mod clauses;
mod host;
mod judge;
mod kind;
mod pulse;

pub use ccl_plugin_host::env::EnvTable;
pub use clauses::env::Env;
pub use clauses::net::Net;
pub use clauses::profiler::Profiler;
pub use judge::{Subject, judge, judge_apart, report};
pub use kind::Kind;

/// One promise of the contract, and how a plugin is held to it.
#[derive(Debug)]
pub struct Clause {
    /// A short name, by which it can be asked for.
    pub name: &'static str,
    /// The promise, in a sentence.
    pub promise: &'static str,
    run: judge::Run,
}

/// What became of a clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kept; what was looked at.
    Ok(String),
    /// Broken; what was expected and what was found.
    Breach(String),
    /// Not looked at, and why.
    Skipped(String),
}

impl Verdict {
    /// `ok`, `breach` or `skipped`.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Ok(_) => "ok",
            Verdict::Breach(_) => "breach",
            Verdict::Skipped(_) => "skipped",
        }
    }

    /// The words.
    pub fn words(&self) -> &str {
        match self {
            Verdict::Ok(words) | Verdict::Breach(words) | Verdict::Skipped(words) => words,
        }
    }
}
