//! The subscriber that writes lines.

use std::io::Write;
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::gettid;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Level, Subsystems};
use crate::discover::host::host_name;
use crate::log::line::{Fields, is_ours, subsystem, word};

/// Writes the events of ccl's crates to a sink, a line each.
pub(super) struct Writer {
    /// Level in the upper half, subsystems in the lower, so that both change at once.
    filter: AtomicU64,
    host: String,
    sink: Mutex<Box<dyn Write + Send>>,
}

impl Writer {
    pub(super) fn new(level: Level, subsystems: Subsystems, sink: Box<dyn Write + Send>) -> Writer {
        Writer { filter: AtomicU64::new(pack(level, subsystems)), host: host_name(), sink: Mutex::new(sink) }
    }

    /// Changes what is written from now on.
    pub(super) fn set(&self, level: Level, subsystems: Subsystems) {
        self.filter.store(pack(level, subsystems), Ordering::Relaxed);
    }

    /// Writes the library's version, if that is wanted: who asked for warnings only gets no other line.
    pub(super) fn greet(&self) {
        let level = self.level();
        if level == Level::Version || level >= Level::Info {
            self.write(&format!("{} CCL version {}\n", self.place(None), env!("CARGO_PKG_VERSION")));
        }
    }

    fn level(&self) -> Level {
        let number = self.filter.load(Ordering::Relaxed) >> 32;
        u8::try_from(number).ok().and_then(Level::from_number).unwrap_or(Level::None)
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        if !is_ours(metadata.target()) {
            return false;
        }
        let (_, from) = word(*metadata.level());
        let bits = self.filter.load(Ordering::Relaxed) as u32;
        // Spans carry the rank of the events in them, so they are kept whatever they are about.
        let about = metadata.is_span()
            || from <= Level::Warn
            || Subsystems::from_bits(bits).contains(subsystem(metadata.target()));
        self.level() >= from && about
    }

    fn place(&self, rank: Option<&str>) -> String {
        let tid = gettid().as_raw_nonzero();
        format!("{}:{}:{tid} [{}]", self.host, process::id(), rank.unwrap_or("-"))
    }

    /// One call of `write` per line, so that lines of several processes do not mix. A sink that fails is not a
    /// reason to stop.
    fn write(&self, line: &str) {
        let mut sink = self.sink.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = sink.write_all(line.as_bytes()).and_then(|()| sink.flush());
    }
}

/// The rank of a span, kept with it.
struct SpanRank(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Writer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata.target()) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.level() {
            Level::None | Level::Version => LevelFilter::OFF,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Trace => LevelFilter::TRACE,
        })
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let (Some(rank), Some(span)) = (fields.rank, context.span(id)) {
            span.extensions_mut().insert(SpanRank(rank));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let of_span = || {
            let mut spans = context.event_scope(event)?;
            spans.find_map(|span| span.extensions().get::<SpanRank>().map(|rank| rank.0.clone()))
        };
        let rank = fields.rank.or_else(of_span);
        let (word, _) = word(*event.metadata().level());
        self.write(&format!("{} CCL {word} {}\n", self.place(rank.as_deref()), fields.text));
    }
}

fn pack(level: Level, subsystems: Subsystems) -> u64 {
    u64::from(level as u8) << 32 | u64::from(subsystems.bits())
}
