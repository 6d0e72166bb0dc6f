//! What rank 0 prints while it measures, and writes when it is done.

use std::io::{self, Write};

use ccl::{Error, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::operation::Operation;
use super::options::{Format, Options};
use super::point::Row;
use super::table::Participant;
use super::{json, plot, table};

/// Prints rows as they come, with progress on a terminal.
pub(crate) struct Report<'a> {
    options: &'a Options,
    n: u32,
    participants: Vec<Participant>,
    progress: ProgressBar,
    rows: Vec<Row>,
    /// The first row of the operation under way.
    first: usize,
}

impl<'a> Report<'a> {
    /// A report of a run among n ranks.
    pub(crate) fn new(options: &'a Options, n: u32, participants: Vec<Participant>) -> Report<'a> {
        // Drawn only when a point is done, and only on a terminal: nothing runs beside the measurement.
        let total = options.point_count(n) as u64;
        let progress = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}");
        progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Report { options, n, participants, progress, rows: Vec::new(), first: 0 }
    }

    /// The rows of an operation follow.
    pub(crate) fn begin(&mut self, operation: Operation) -> Result<()> {
        self.first = self.rows.len();
        self.progress.set_message(operation.name());
        self.print_table(|report| {
            table::head(operation, &report.options.describe(report.n), &report.participants)
        })
    }

    /// A point is measured.
    pub(crate) fn add(&mut self, row: Row) -> Result<()> {
        self.rows.push(row);
        self.progress.inc(1);
        match self.options.format {
            Format::Table => self.print(&table::row(&row)),
            Format::Json => self.print(&json::line(&row, self.options.memory)),
        }
    }

    /// The operation is done.
    pub(crate) fn end(&mut self, operation: Operation) -> Result<()> {
        self.print_table(|report| table::foot(operation, &report.rows[report.first..]))
    }

    /// Everything is done.
    pub(crate) fn finish(self) -> Result<()> {
        self.progress.finish_and_clear();
        if self.options.operations.len() > 1 {
            self.print_table(|report| table::summary(&report.rows))?;
        }
        let Some(path) = &self.options.plot else { return Ok(()) };
        std::fs::write(path, plot::svg(&self.rows)?).map_err(|error| {
            let doing = format!("write the plot to {}", path.display());
            Error::system(&doing, error, "give --plot a file in a folder that exists")
        })
    }

    fn print_table(&self, text: impl FnOnce(&Report<'_>) -> String) -> Result<()> {
        match self.options.format {
            Format::Table => self.print(&text(self)),
            Format::Json => Ok(()),
        }
    }

    fn print(&self, text: &str) -> Result<()> {
        let write = || {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        self.progress
            .suspend(write)
            .map_err(|error| Error::system("write to standard output", error, "keep its reader open"))
    }
}
