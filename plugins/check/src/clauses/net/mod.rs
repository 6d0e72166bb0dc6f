//! The clauses of networks, one table.

mod buffer;
mod errors;
mod joining;
mod messages;
mod optional;
mod pair;
mod raw;
mod resources;
mod speed;
mod subject;
mod table;

pub(crate) use pair::Stage;
pub use subject::Net;

use crate::Clause;
use crate::breach::Outcome;
use crate::judge::Run;

/// Every clause, in the order in which an author gets to them.
pub(crate) const CLAUSES: &[Clause] = &[
    row("table", "The table has its size, its version, a name, and every required entry.", table::table),
    row("contexts", "Contexts live side by side, and one's end does not touch another.", table::contexts),
    row(
        "properties",
        "A device says what it is, within its struct and within the bounds.",
        table::properties,
    ),
    row("last_error", "A failure has words, its own code, and belongs to its thread.", table::last_error),
    row("handle", "A handle fills its 128 bytes, no more, and differs from every other.", joining::handle),
    row(
        "connect",
        "Two ends find each other by polling, also several times by one handle.",
        joining::connect,
    ),
    row(
        "admission",
        "A connection reaches the listener that made its handle, and no other.",
        joining::admission,
    ),
    row("refusal", "Handles of nobody are refused, and a closed listener's in words.", joining::refusal),
    row("nonblocking", "No entry waits for the peer.", joining::nonblocking),
    row("sizes", "Messages of any size arrive whole, with their sizes, in their buffers.", messages::sizes),
    row(
        "pending",
        "A receive without a message is not done, and one message ends one receive.",
        messages::pending,
    ),
    row("order", "Messages with one tag arrive in the order sent.", messages::order),
    row("tags", "A message goes to the oldest receive with its tag.", messages::tags),
    row("groups", "Up to max_recvs receives are one request, done when all are there.", messages::groups),
    row("unexpected", "Messages may be posted before there is room for them.", messages::unexpected),
    row(
        "in_flight",
        "As many requests as promised are in flight, and `not now` posts nothing.",
        messages::in_flight,
    ),
    row("out_of_order", "Requests are tested in any order.", messages::out_of_order),
    row(
        "registration",
        "Memory is registered whole, in parts, several times, and let go.",
        messages::registration,
    ),
    row("too_long", "A message longer than its room is an error with both sizes.", errors::too_long),
    row("peer_gone", "When the peer closed, pending requests fail and name it.", errors::peer_gone),
    row("delivered", "What was reported sent still arrives after the sender closed.", errors::delivered),
    row(
        "close_pending",
        "Closing ends what is pending; no buffer is touched after it.",
        errors::close_pending,
    ),
    row("abort", "After abort every call fails with ABORTED, also one made meanwhile.", errors::abort),
    row("threads", "Connections, and the ends of one, are used by different threads.", resources::threads),
    row("cycles", "A hundred contexts come and go.", resources::cycles),
    row("leaks", "Nothing is left behind: no descriptor, no thread.", resources::leaks),
    row("test_many", "test_sends and test_recvs say what single tests would.", optional::test_many),
    row("isend_more", "A message that was held leaves with the next, or with a test.", optional::isend_more),
    row("isend_from", "What was elsewhere is sent or copied when the call returns.", optional::isend_from),
    row("turn", "A turned connection carries both ways, each closed by itself.", optional::turn),
    row("watch", "What is pending is not done before a descriptor of watch is ready.", optional::watch),
    row("one_sided", "put, get and signal reach the peer's memory, within its bounds.", optional::one_sided),
    row("speed", "Latency and bandwidth beside the socket network; never a breach.", speed::speed),
];

const fn row(name: &'static str, promise: &'static str, run: fn(&Stage) -> Outcome<String>) -> Clause {
    Clause { name, promise, run: Run::Net(run) }
}
