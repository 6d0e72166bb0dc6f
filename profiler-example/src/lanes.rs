//! Rows of the trace. Viewers nest slices of one row by time, so what merely overlaps needs another row.

use std::collections::BTreeMap;

use ccl_plugin::profiler::Kind;

/// Which slices are open in which row, the innermost last.
#[derive(Default)]
pub(crate) struct Lanes(BTreeMap<u32, Vec<u64>>);

impl Lanes {
    /// A row for an event that starts now: its parent's (a row and an id) if that has no other open child
    /// there, else the first row of its sort in which nothing is open.
    pub(crate) fn enter(&mut self, kind: Kind, parent: Option<(u32, u64)>, id: u64) -> u32 {
        let innermost = |lanes: &Lanes, lane| lanes.0.get(&lane).and_then(|open| open.last().copied());
        let inside = parent.filter(|(lane, parent)| innermost(self, *lane) == Some(*parent));
        let lane = inside.map(|(lane, _)| lane).unwrap_or_else(|| {
            let mut lane = first_of(kind);
            while innermost(self, lane).is_some() {
                lane += 1;
            }
            lane
        });
        self.0.entry(lane).or_default().push(id);
        lane
    }

    /// An event stops. Its children have, so it is the innermost of its row.
    pub(crate) fn leave(&mut self, lane: u32, id: u64) {
        if let Some(open) = self.0.get_mut(&lane) {
            open.retain(|other| *other != id);
        }
    }
}

/// The first rows of calls, work and the progress thread, which go on at the same time.
pub(crate) const FIRST: [(u32, &str); 3] = [(1000, "calls"), (2000, "work"), (3000, "progress thread")];

fn first_of(kind: Kind) -> u32 {
    let [(calls, _), (work, _), (progress, _)] = FIRST;
    match kind {
        Kind::GroupApi | Kind::CollApi | Kind::P2pApi => calls,
        Kind::ProxyCtrl => progress,
        _ => work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_has_a_row_of_its_own_and_children_lie_in_their_parents() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.enter(Kind::Group, None, 1), 2000);
        assert_eq!(lanes.enter(Kind::Coll, Some((2000, 1)), 2), 2000);
        assert_eq!(
            lanes.enter(Kind::P2p, Some((2000, 1)), 3),
            2001,
            "the group's row is the collective's now"
        );
        assert_eq!(lanes.enter(Kind::GroupApi, None, 4), 1000);
        lanes.leave(2000, 2);
        assert_eq!(lanes.enter(Kind::P2p, Some((2000, 1)), 5), 2000);
        lanes.leave(2001, 3);
        assert_eq!(lanes.enter(Kind::Group, None, 6), 2001);
    }
}
