//! The clauses of tuners, one table.

mod advice;
mod lives;
mod outside;
mod stage;
mod subject;

pub(crate) use stage::Stage;
pub use subject::Tuner;

use crate::Clause;
use crate::breach::Outcome;
use crate::judge::Run;

/// Every clause, in the order in which an author gets to them.
pub(crate) const CLAUSES: &[Clause] = &[
    row("table", "The table has its size, its version, a name, and every entry.", lives::table),
    row("contexts", "Contexts live side by side, and one's end does not touch another.", lives::contexts),
    row("collectives", "Every collective gets an answer of numbers.", advice::collectives),
    row("sizes", "So does every size, from nothing to the largest there is.", advice::sizes),
    row("names", "Names that it does not know are left alone.", advice::names),
    row("counts", "One candidate or many: each gets an answer.", advice::counts),
    row("same", "Equal questions get equal answers.", advice::same),
    row("outside", "It writes to the fields marked out and nowhere else.", outside::outside),
    row("in_time", "All that a communicator asks is answered in time.", advice::in_time),
    row("log", "A line of log is one line of text.", advice::log),
    row("threads", "Several communicators are advised at the same time.", lives::threads),
    row("cycles", "A hundred contexts come and go.", lives::cycles),
    row("leaks", "Nothing is left behind: no descriptor, no thread.", lives::leaks),
];

const fn row(name: &'static str, promise: &'static str, run: fn(&Stage) -> Outcome<String>) -> Clause {
    Clause { name, promise, run: Run::Tuner(run) }
}
