//! The clauses of profilers. Until there is one, profilers cannot be checked.

use crate::Clause;

/// Every clause, in the order in which an author gets to them.
pub(crate) const CLAUSES: &[Clause] = &[];
