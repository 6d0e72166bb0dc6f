//! Networks, as safe types over the table.
//!
//! Every object is `Send`, closes without blocking when dropped, and keeps its context alive; the
//! context is finalised when the last of them is gone. Calls never block: `None` is "not yet".

mod comm;
mod context;
mod plugin;

pub use ccl_plugin::c::FLAG_ANY_MEMORY;
pub use ccl_plugin::net::{Handle, MemoryKind, Properties};
pub use comm::{Mr, RecvBuffer, RecvComm, Request, SendComm};
pub use context::{Connecting, Listener, NetContext};
pub use plugin::NetPlugin;

/// What an entry returned, as a `Result`.
macro_rules! call {
    ($plugin:expr, $entry:ident ( $($argument:expr),* $(,)? )) => {{
        let plugin: $crate::net::NetPlugin = $plugin;
        match plugin.table().$entry {
            None => Err(plugin.missing(stringify!($entry))),
            Some(entry) => {
                // SAFETY: arguments as `ccl_net.h` asks: objects that this module got from the
                // entry that makes them and has not closed, used by one thread because they are
                // borrowed mutably (or are the context, which may be shared); out pointers to
                // locals; arrays of the stated length.
                match unsafe { entry($($argument),*) } {
                    0 => Ok(()),
                    code => Err(plugin.failed(stringify!($entry), code)),
                }
            }
        }
    }};
}
pub(crate) use call;
