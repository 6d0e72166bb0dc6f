//! Indices, each its own type.

use core::fmt;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $repr);

        impl $name {
            /// The index as a `usize`, for slices.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
pub(crate) use index;

index! {
    /// A participant's index in a communicator, `0..n`.
    Rank(u32)
}
index! {
    /// A rank's position in the order a plan follows, `0..n`. Programs speak of places only; the
    /// plan's order turns a place into a rank.
    Place(u32)
}
index! {
    /// An independent share of the data with its own edges.
    Channel(u16)
}
