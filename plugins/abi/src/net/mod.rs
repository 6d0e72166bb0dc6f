//! Networks: the traits an author implements, and the table made from them.

mod entries;
mod traits;
mod types;

pub(crate) use entries::exported_table;
pub use entries::{init_by, table};
pub use traits::{Connecting, Listener, Net, RecvComm, SendComm};
pub(crate) use types::copy_text;
pub use types::{Elsewhere, Handle, Memory, MemoryKind, Mr, Properties, RecvBuffer, Request, SendBuffer};
