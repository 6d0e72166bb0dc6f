//! How long ranks take to find each other: roots that serve one rank at a time.
//!
//! Every rank connects to its root, which is the process that made its unique id, and says where it
//! listens. A root hears its ranks one after the other, gives the root before it the address of its first
//! rank, and then tells each of its ranks who is next. With one root all of that is linear in n; with a root
//! for every so many ranks it is not, since a root has to wait for one other only.
//!
//! What ranks say to each other afterwards is a collective among them, and not part of this.
//!
//! Source: NCCL's `ncclCommInitRankScalable` (version 2.23) for the scheme.

use serde::Deserialize;

/// What a root does, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// Until a connection stands and the other side knows who it is.
    pub connect_us: f64,
    /// A root's time for each rank that it hears.
    pub hear_us: f64,
    /// A root's time for each rank that it answers.
    pub answer_us: f64,
}

impl Bootstrap {
    /// When the last of `n` ranks knows its neighbour, with `roots` roots that serve as many ranks each.
    pub fn time_us(&self, n: u32, roots: u32) -> f64 {
        let roots = roots.clamp(1, n.max(1));
        let first = |root: u32| u64::from(root) * u64::from(n) / u64::from(roots);
        let ranks = |root: u32| (first(root + 1) - first(root)) as f64;
        let heard = |root: u32| self.connect_us + ranks(root) * self.hear_us;
        let last_answer = |root: u32| {
            let next = (root + 1) % roots;
            // Ranks come in any order: the first one's address may be the last that is heard.
            let from_next = if next == root { 0.0 } else { heard(next) + self.connect_us };
            heard(root).max(from_next) + ranks(root) * self.answer_us
        };
        (0..roots).map(last_answer).fold(0.0, f64::max)
    }
}

impl Default for Bootstrap {
    /// A TCP connection with a challenge and its answer, and a message each way.
    fn default() -> Bootstrap {
        Bootstrap { connect_us: 300.0, hear_us: 60.0, answer_us: 20.0 }
    }
}
