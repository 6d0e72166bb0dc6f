//! The binary `ccl` as users start it: everything `ccl perf` measures, and the launchers it joins.

mod example_net;
mod launchers;
mod matrix;

use std::sync::{Mutex, MutexGuard};

/// Held by a test while its ranks run: more of them at a time would only wait for processors.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
