//! Ranks' output, line by line, each line with its rank.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread::{self, JoinHandle};

/// Copies `from` to `to` until its end, whole lines at a time, each after `[rank] `.
pub(crate) fn label<R, W>(rank: usize, from: R, to: fn() -> W) -> io::Result<JoinHandle<()>>
where
    R: Read + Send + 'static,
    W: Write + 'static,
{
    let copy = move || {
        let mut from = BufReader::new(from);
        while let Ok(Some(line)) = next_line(rank, &mut from) {
            // Nobody may be reading any more; the rank must still be able to write.
            let _ = to().write_all(&line);
        }
    };
    thread::Builder::new().name(format!("output {rank}")).spawn(copy)
}

/// The next line with its rank and its end, which a last line may lack; nothing at the end.
fn next_line(rank: usize, from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = format!("[{rank}] ").into_bytes();
    let read = from.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    if read > 0 && line.last() != Some(&b'\n') {
        line.push(b'\n');
    }
    Ok((read > 0).then_some(line))
}

/// Longer lines are broken.
const MAX_LINE_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_labelled_and_completed() {
        let mut from = &b"one\n\ntwo"[..];
        let mut lines = Vec::new();
        while let Some(line) = next_line(3, &mut from).unwrap() {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["[3] one\n", "[3] \n", "[3] two\n"]);
    }

    #[test]
    fn endless_lines_are_broken() {
        let long = vec![b'x'; MAX_LINE_BYTES as usize + 5];
        let mut from = &long[..];
        assert_eq!(next_line(0, &mut from).unwrap().unwrap().len(), 4 + MAX_LINE_BYTES as usize + 1);
        assert_eq!(next_line(0, &mut from).unwrap().unwrap(), b"[0] xxxxx\n");
    }
}
