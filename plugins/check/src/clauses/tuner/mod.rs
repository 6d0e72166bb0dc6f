//! The clauses of tuners. Until there is one, tuners cannot be checked.

use crate::Clause;

/// Every clause, in the order in which an author gets to them.
pub(crate) const CLAUSES: &[Clause] = &[];
