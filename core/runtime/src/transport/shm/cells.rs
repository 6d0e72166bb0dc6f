//! Room for short payloads beside the lines of an edge: which of it is free.
//!
//! There is a cell for each line, and more lines than messages under way, so that there is a free cell wherever there is a free line. A
//! message says which cell it is in: mostly that beside its line, which the receiver asks for before the message is there. Longer payloads
//! lie in the first few cells on AMD processors while few are under way: these stay in the near caches (ADR 0111).

/// The cells of one edge, as its producer knows them.
#[derive(Debug)]
pub(super) struct Cells {
    /// One more than the message that last used each.
    last: Box<[u64]>,
    /// For so many more messages the first few are not looked at: they were all taken of late.
    aside: u32,
}

impl Cells {
    /// As many as there are lines.
    pub(super) fn new(lines: usize) -> Cells {
        Cells { last: vec![0; lines].into(), aside: 0 }
    }

    /// The cell beside `line` if it is free, as messages below `released` have been released, or else the first free one.
    #[inline(always)]
    pub(super) fn choose(&self, line: usize, released: u64) -> usize {
        if self.last[line] <= released { line } else { self.first(self.last.len(), released).unwrap_or(line) }
    }

    /// One of the first few, or else as [`Cells::choose`]; `released` looks up what has been released.
    pub(super) fn choose_early(&mut self, line: usize, known: u64, released: impl FnOnce() -> u64) -> usize {
        if self.aside > 0 {
            self.aside -= 1;
            return self.choose(line, known);
        }
        let released = released();
        let early = self.first(FEW, released);
        if early.is_none() {
            self.aside = ASIDE;
        }
        early.unwrap_or_else(|| self.choose(line, released))
    }

    /// The first free one of so many. There is one of all of them, as the line is free.
    #[cold]
    fn first(&self, cells: usize, released: u64) -> Option<usize> {
        self.last.iter().take(cells).position(|last| *last <= released)
    }

    /// The message before `next` is in that cell.
    #[inline(always)]
    pub(super) fn take(&mut self, cell: usize, next: u64) {
        self.last[cell] = next;
    }
}

/// Cells that longer payloads keep to while they can.
const FEW: usize = 4;
/// Messages that go elsewhere once these are taken: looking for what was released takes time.
const ASIDE: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_beside_its_line_or_in_the_first_free_cell() {
        let mut cells = Cells::new(4);
        assert_eq!([0, 3].map(|line| cells.choose(line, 0)), [0, 3]);
        // Message 0 is in cell 2, message 1 in cell 0.
        cells.take(2, 1);
        cells.take(0, 2);
        assert_eq!([0, 1, 2, 3].map(|line| cells.choose(line, 0)), [1, 1, 1, 3]);
        assert_eq!([0, 1, 2, 3].map(|line| cells.choose(line, 1)), [1, 1, 2, 3]);
        assert_eq!([0, 1, 2, 3].map(|line| cells.choose(line, 2)), [0, 1, 2, 3]);
    }

    #[test]
    fn longer_payloads_keep_to_few_cells_until_these_are_taken() {
        let mut cells = Cells::new(64);
        let mut looked = 0;
        let mut send = |message: u64, released: u64| {
            let before = looked;
            let cell = cells.choose_early(message as usize % 64, 0, || {
                looked += 1;
                released
            });
            cells.take(cell, message + 1);
            (cell, looked > before)
        };
        assert_eq!(send(0, 0), (0, true));
        assert_eq!(send(1, 1), (0, true), "message 0 has been read");
        assert_eq!([2, 3, 4].map(|message| send(message, 1)), [(1, true), (2, true), (3, true)]);
        assert_eq!(send(5, 1), (5, true), "all are taken");
        for message in 6..6 + u64::from(ASIDE) {
            assert_eq!(send(message, 0), (message as usize, false));
        }
        assert_eq!(send(38, 38), (0, true));
    }
}
