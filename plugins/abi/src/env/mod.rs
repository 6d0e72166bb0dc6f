//! Sources of settings: the trait an author implements, and the table made from it.

pub mod c;
mod entries;
mod traits;

pub(crate) use entries::exported_table;
pub use entries::{init_by, table};
pub use traits::Env;
