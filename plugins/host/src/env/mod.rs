//! Env plugins: sources of settings, loaded, initialised and finalised once in a process.

mod load;
mod plugin;
mod table;

pub use load::EnvPlugin;
pub use plugin::Answer;
pub use table::EnvTable;
