//! The plan tier: what programs say, and that they are right.
//!
//! Golden texts a reviewer can read, every plan verified at small n, larger n by example, damage
//! that must be noticed, and the bytes that the algorithms' descriptions promise. The heavy sweep
//! is `ccl plan verify`; `cargo run --release -p ccl-plan --example verify -- 128` is the same.

mod bytes;
mod custom;
mod golden;
mod sweep;
