//! The clauses of profilers, `plugins/include/ccl_profiler.h`, one table. Profilers made for NCCL are held to them as well,
//! through their adapter.

mod context;
mod contexts;
mod events;
mod files;
mod resources;
mod script;
mod subject;
mod table;

pub(crate) use context::Stage;
pub use subject::Profiler;

use crate::Clause;
use crate::breach::Outcome;
use crate::judge::Run;

/// Every clause, in the order in which an author gets to them.
pub(crate) const CLAUSES: &[Clause] = &[
    row("table", "The table has its size, its version, a name, and every entry.", table::table),
    row("mask", "init, or a thread soon after it, asks for kinds that there are.", table::mask),
    row("later_structs", "Structs that later hosts have made longer are taken.", table::later_structs),
    row("contexts", "Contexts live side by side, and one's end does not touch another.", contexts::contexts),
    row("unused", "A context that hears nothing is ended like any other.", contexts::unused),
    row("threads", "Contexts are made by several threads while another tells of events.", contexts::threads),
    row("events", "Launches are heard of, with every kind that was asked for.", events::events),
    row("parents", "Events come without a parent, or with a more distant one.", events::parents),
    row("unknown", "Kinds and states of later hosts are refused or ignored.", events::unknown),
    row("order", "Events stop in any order that has children before parents.", events::order),
    row("in_flight", "Ten thousand events are open at once.", events::in_flight),
    row("cycles", "A hundred contexts come and go.", resources::cycles),
    row("leaks", "Nothing is left behind: no descriptor, no thread.", resources::leaks),
    row("files", "Files that it writes are closed and have something in them at the end.", files::files),
    row("speed", "What a start and its stop take; never a breach.", resources::speed),
];

const fn row(name: &'static str, promise: &'static str, run: fn(&Stage) -> Outcome<String>) -> Clause {
    Clause { name, promise, run: Run::Profiler(run) }
}
