//! The clauses of env plugins, one table.

mod answers;
mod manners;
mod source;
mod subject;

pub use subject::Env;
pub(crate) use subject::Stage;

use crate::Clause;
use crate::breach::Outcome;
use crate::judge::Run;

/// Every clause, in the order in which an author gets to them.
pub(crate) const CLAUSES: &[Clause] = &[
    row("table", "The table has its size, its version, a name, and every entry.", answers::table),
    row("answers", "What is answered about any setting is a line of text, or null.", answers::answers),
    row("odd_names", "Names that nobody has are answered as well.", answers::odd_names),
    row("lasting", "An answer stays as it is until finalize.", answers::lasting),
    row("threads", "Several threads ask at the same time.", manners::threads),
    row("prompt", "getEnv waits for nothing.", manners::prompt),
    row(
        "environment",
        "The environment and the folder of the process stay as they are.",
        manners::environment,
    ),
    row("leaks", "finalize leaves nothing behind: no descriptor, no thread.", manners::leaks),
];

const fn row(name: &'static str, promise: &'static str, run: fn(&Stage) -> Outcome<String>) -> Clause {
    Clause { name, promise, run: Run::Env(run) }
}
