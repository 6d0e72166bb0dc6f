//! Files of traces, as the example profiler writes them; of other profilers, what computes.

use std::borrow::Cow;

use ccl::{Error, Result};
use serde::{Deserialize, Deserializer};

/// One file.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) file: String,
    pub(super) rank: u32,
    /// Ranks of the communicator.
    pub(super) ranks: u32,
    /// `None` in a trace of another profiler, which only says what computes.
    pub(super) communicator: Option<String>,
    /// Traces of the same host share a clock.
    pub(super) host: String,
    /// The time of day at which that clock was 0.
    pub(super) base_ns: i64,
    /// `None` if the file has no end.
    pub(super) dropped: Option<u64>,
    pub(super) works: Vec<Work>,
    /// When the caller was in a call.
    pub(super) calls: Vec<Span>,
    /// When a device computed.
    pub(super) computing: Vec<Span>,
}

/// A collective or message of one rank, from its first step to its last.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) collective: String,
    pub(super) algorithm: String,
    pub(super) bytes: u64,
    /// Number in its communicator, the same on all ranks; 0 of messages.
    pub(super) sequence: u64,
    pub(super) peer: Option<u64>,
    pub(super) span: Span,
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) since_ns: i64,
    pub(super) until_ns: i64,
}

impl Span {
    pub(super) fn took_ns(self) -> i64 {
        self.until_ns - self.since_ns
    }
}

impl Trace {
    /// The trace in a text. One whose end is missing, because its process was killed, has what is there.
    ///
    /// # Errors
    ///
    /// It is no trace, or of no rank.
    pub(super) fn parse(file: &str, text: &str) -> Result<Trace> {
        let wrong = |found: String| {
            let cause = format!(
                "{file}: expected a trace of profiler-example or a flight recorder's file, found {found}"
            );
            Error::usage(cause, "docs/manual/traces.md says how to get such files; unpack what is compressed")
        };
        let mended: String;
        let raw = match serde_json::from_str::<File<'_>>(text) {
            Err(error) if error.is_eof() => {
                // Every event has a line, which ends with a comma.
                mended = text.rfind(",\n").map_or(String::new(), |end| format!("{}]}}", &text[..end]));
                serde_json::from_str(&mended).map_err(|_| wrong(format!("{error}")))?
            }
            other => other.map_err(|error| wrong(error.to_string()))?,
        };
        let Some(rank) = raw.distributed.as_ref().and_then(|info| info.rank) else {
            return Err(wrong("no rank (distributedInfo.rank)".to_owned()));
        };
        let mut trace = Trace {
            file: file.to_owned(),
            rank,
            ranks: raw.distributed.and_then(|info| info.world_size).unwrap_or(rank.saturating_add(1)),
            host: raw.info.as_ref().map_or(String::new(), |info| info.host.clone()),
            communicator: raw.info.map(|info| info.communicator),
            base_ns: raw.base_ns.unwrap_or(0).clamp(0, i64::MAX / 4),
            dropped: raw.summary.map(|summary| summary.dropped_events),
            works: Vec::new(),
            calls: Vec::new(),
            computing: Vec::new(),
        };
        raw.events.into_iter().for_each(|event| trace.add(event));
        Ok(trace)
    }

    /// All its times are so much later.
    pub(super) fn shift(&mut self, by_ns: i64) {
        let works = self.works.iter_mut().map(|work| &mut work.span);
        for span in works.chain(&mut self.calls).chain(&mut self.computing) {
            span.since_ns += by_ns;
            span.until_ns += by_ns;
        }
    }

    fn add(&mut self, event: Event<'_>) {
        let (Some(since), Some(took)) = (event.ts.filter(is_time), event.dur.filter(is_time)) else { return };
        let nanos = |micros: f64| (micros * 1000.0).round() as i64;
        let span = Span { since_ns: nanos(since), until_ns: nanos(since) + nanos(took) };
        let (args, category) = (event.args.unwrap_or_default(), event.cat.as_deref().unwrap_or(""));
        if self.communicator.is_none() {
            if args.stream.is_some() && !is_transfer(&event.name) {
                self.computing.push(span);
            }
            return;
        }
        match (category, args.collective) {
            ("kernel", Some(collective)) => self.works.push(Work {
                collective: collective.into_owned(),
                algorithm: args.algorithm.map_or(String::new(), |name| short(&name).to_owned()),
                bytes: args.bytes.unwrap_or(0),
                sequence: args.sequence.unwrap_or(0),
                peer: args.peer,
                span,
            }),
            // Somebody has put kernels into the file.
            ("kernel", None) => self.computing.push(span),
            ("cpu_op", None) => self.calls.push(span),
            _ => {}
        }
    }
}

/// `all_reduce.ring` as `ring`: the collective has a column of its own.
fn short(algorithm: &str) -> &str {
    algorithm.split_once('.').map_or(algorithm, |(_, short)| short)
}

/// Whether it is microseconds that nanoseconds can be made of: thirty years at most.
fn is_time(micros: &f64) -> bool {
    (0.0..=1e15).contains(micros)
}

/// Whether a kernel of another profiler moves data instead of computing.
fn is_transfer(name: &str) -> bool {
    ["nccl", "Memcpy", "Memset", "dma"].iter().any(|start| name.starts_with(start))
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(rename = "distributedInfo")]
    distributed: Option<Distributed>,
    #[serde(rename = "cclInfo")]
    info: Option<Info>,
    #[serde(rename = "cclSummary")]
    summary: Option<Summary>,
    #[serde(rename = "baseTimeNanoseconds")]
    base_ns: Option<i64>,
    #[serde(rename = "traceEvents", borrow)]
    events: Vec<Event<'a>>,
}

#[derive(Deserialize)]
struct Distributed {
    rank: Option<u32>,
    world_size: Option<u32>,
}

#[derive(Deserialize)]
struct Info {
    communicator: String,
    host: String,
}

#[derive(Deserialize)]
struct Summary {
    dropped_events: u64,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    cat: Option<Cow<'a, str>>,
    ts: Option<f64>,
    dur: Option<f64>,
    #[serde(borrow)]
    args: Option<Args<'a>>,
}

/// What other profilers write under these names may be anything.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Args<'a> {
    #[serde(deserialize_with = "number")]
    stream: Option<u64>,
    #[serde(borrow)]
    collective: Option<Cow<'a, str>>,
    #[serde(borrow)]
    algorithm: Option<Cow<'a, str>>,
    #[serde(deserialize_with = "number")]
    bytes: Option<u64>,
    #[serde(deserialize_with = "number")]
    sequence: Option<u64>,
    #[serde(deserialize_with = "number")]
    peer: Option<u64>,
}

fn number<'a, D: Deserializer<'a>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(serde_json::Value::deserialize(from)?.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "{\"distributedInfo\": {\"rank\": 1, \"world_size\": 2}, \"baseTimeNanoseconds\": 5, ";

    #[test]
    fn a_trace_without_an_end_has_what_is_there() {
        let text = format!(
            "{HEAD}\"cclInfo\": {{\"communicator\": \"c\", \"host\": \"h\"}}, \"traceEvents\": [\n\
             {{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"n\", \"ts\": 1.5, \"dur\": 2.25, \
             \"args\": {{\"collective\": \"all_reduce\", \"algorithm\": \"all_reduce.ring\", \"sequence\": 3}}}},\n{{\"ph\": \"X\", \"ca"
        );
        let trace = Trace::parse("f", &text).unwrap();
        assert_eq!((trace.rank, trace.ranks, trace.dropped, trace.works.len()), (1, 2, None, 1));
        assert_eq!(trace.works[0].span, Span { since_ns: 1500, until_ns: 3750 });
        assert_eq!((&*trace.works[0].algorithm, trace.works[0].sequence), ("ring", 3));
    }

    #[test]
    fn another_profilers_trace_says_what_computes() {
        let event = |name: &str, args: &str| {
            format!("{{\"ph\": \"X\", \"name\": \"{name}\", \"ts\": 1, \"dur\": 2, \"args\": {{{args}}}}}")
        };
        let wild = "{\"name\": \"gemm\", \"ts\": -1e300, \"dur\": 1e300, \"args\": {\"stream\": 7}}";
        let text = format!(
            "{HEAD}\"traceEvents\": [{wild}, {}, {}, {}]}}",
            event("gemm", "\"stream\": 7, \"bytes\": \"many\""),
            event("ncclDevKernel_AllReduce", "\"stream\": 8"),
            event("aten::mm", "")
        );
        assert_eq!(Trace::parse("f", &text).unwrap().computing.len(), 1);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for text in ["", "{}", "[1]", "{\"traceEvents\": []}", "{\"traceEvents\": ["] {
            let error = Trace::parse("f.json", text).unwrap_err().to_string();
            assert!(error.contains("f.json: expected a trace"), "{text}: {error}");
        }
    }
}
