//! Text for people: printing it, tables, lists.

use std::io::{self, ErrorKind, Write};

use ccl::{Error, Rank, Result};
use comfy_table::{ContentArrangement, LineStyle, Table, presets};

/// Writes to standard output. That nobody reads it any more is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::system("write to standard output", error, "free some space, or write elsewhere"))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error, in one piece: several ranks may share it.
pub(crate) fn complain(line: &str) {
    // There is nowhere left to say that this failed.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// An empty table with these titles.
pub(crate) fn table<const N: usize>(titles: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(titles);
    table
}

/// Ascending ranks as `0, 2-5`.
pub(crate) fn ranges(ranks: &[Rank]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks.iter().copied() {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(ranges(&[0, 2, 3, 4, 7].map(Rank)), "0, 2-4, 7");
        assert_eq!(ranges(&[]), "");
    }
}
