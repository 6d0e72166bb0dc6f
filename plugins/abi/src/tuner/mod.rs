//! Tuners: the trait an author implements, and the table made from it.

pub mod c;
mod entries;
mod traits;
mod types;

pub(crate) use entries::exported_table;
pub use entries::{init_by, table};
pub use traits::Tuner;
pub use types::{Call, Candidate, Comm};
