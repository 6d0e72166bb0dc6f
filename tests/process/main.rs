//! Ranks as processes: kills, strangers at the root's port, idle communicators, what they take,
//! and hosts without shared memory files.
//!
//! This binary runs itself once for each rank; see [`worker`] for what a rank does.

#![allow(clippy::unwrap_used)]

mod alone;
mod fork;
mod idle;
mod kills;
mod mapped;
mod memory;
mod pool;
mod roots;
mod shm;
mod split;
mod strangers;
mod worker;

/// The body of a rank; nothing when run as a test.
#[test]
fn rank_of_a_test() {
    if std::env::var_os(pool::ROLE).is_some() {
        worker::serve();
    }
}
