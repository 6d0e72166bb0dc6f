//! The laws of the repository, as tests.
//!
//! What a crate may depend on, how long functions and files may grow, where `unsafe` may stand,
//! formatting, clippy, rustdoc, and the documents that must keep up with the code. Each test lists
//! every violation it finds, with the file and the line, and says what to do.
//!
//! `cargo test -p ccl-tests --test ci -- --nocapture` also prints the sizes as they stand.

mod cargo;
mod dependencies;
mod documents;
mod layout;
mod lints;
mod rust;
mod settings;
mod size;
mod tree;
mod unsafety;
mod words;

/// Fails with every violation of `law`, or passes in silence.
#[track_caller]
fn uphold(law: &str, violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{law}\n{} violation(s):\n  {}\n",
        violations.len(),
        violations.join("\n  ")
    );
}
