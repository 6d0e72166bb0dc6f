//! Executors: what turns a checked program into moved bytes.

pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod host;
mod lending;
mod mapped;
mod message;
pub(crate) mod plans;
pub mod reduce;
mod short;
pub(crate) mod step;
mod straight;
mod tape;
pub(crate) mod trial;
mod tuning;
mod user;

pub use plans::{Carried, Reach, selection};
pub use tuning::{TunedLink, TunedRule, Tuning};
pub(crate) use user::digest as user_programs;
pub use user::read_program;
