//! Faults that only the system can make: hosts whose network goes away.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

mod hosts;
mod namespaces;
