//! Profilers: the trait an author implements, and the table made from it.

pub mod c;
mod entries;
mod traits;
mod types;

pub(crate) use entries::exported_table;
pub use entries::{init_by, table};
pub use traits::Profiler;
pub use types::{Call, Comm, Event, Group, Kind, Mask, Of, ProxyOp, ProxyStep, State, StateKind, Summary};
