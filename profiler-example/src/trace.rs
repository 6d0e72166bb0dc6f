//! The trace: a line for each event, in the format that Kineto, Chrome and Perfetto share.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};

use ccl_plugin::profiler::{Comm, Event, Kind, Of, State, Summary};

use crate::lanes::FIRST;
use crate::{clock, names};

/// An open event.
pub(crate) struct Slice {
    pub(crate) kind: Kind,
    pub(crate) of: Of,
    pub(crate) since_ns: u64,
    /// Which row of the trace it is drawn in.
    pub(crate) lane: u32,
    pub(crate) id: u64,
    parent_id: Option<u64>,
    /// States so far, as fields of JSON.
    states: String,
}

impl Slice {
    pub(crate) fn new(event: &Event<'_, Slice>, lane: u32) -> Slice {
        let (id, parent_id) = (event.id, event.parent_id);
        // `time_ns` is when it happened; this function runs a while after.
        Slice {
            kind: event.kind,
            of: event.of,
            since_ns: event.time_ns,
            lane,
            id,
            parent_id,
            states: String::new(),
        }
    }

    /// Keeps a state for the slice's arguments.
    pub(crate) fn note(&mut self, state: &State) {
        // Writing to a String cannot fail.
        let _ = write!(self.states, ", \"{:?} at ns\": {}", state.kind, state.time_ns);
        if state.bytes > 0 {
            let _ = write!(self.states, ", \"{:?} bytes\": {}", state.kind, state.bytes);
        }
    }

    /// Whether it is communication, rather than a call that asks for it.
    fn is_work(&self) -> bool {
        matches!(self.kind, Kind::Coll | Kind::P2p)
    }

    fn name(&self) -> String {
        match &self.of {
            Of::Call(call) => names::of_call(call),
            Of::ProxyOp(op) if op.is_send => format!("to rank {}", op.peer),
            Of::ProxyOp(op) => format!("from rank {}", op.peer),
            Of::ProxyStep(step) => format!("message {}", step.step),
            _ => format!("{:?}", self.kind),
        }
    }

    /// Names and values as tools for PyTorch's traces know them, and what else there is.
    fn arguments(&self, nranks: u32) -> String {
        let mut text = format!("\"id\": {}", self.id);
        let mut add = |name: &str, value: String| _ = write!(text, ", \"{name}\": {value}");
        if let Some(parent) = self.parent_id {
            add("parent", parent.to_string());
        }
        match &self.of {
            Of::Call(call) => {
                let (input, output) = names::elements(call.func, call.count, nranks);
                add("Collective name", quoted(names::collective(call.func)));
                add("In msg nelems", input.to_string());
                add("Out msg nelems", output.to_string());
                add("Group size", nranks.to_string());
                add("dtype", quoted(names::scalar_type(call.dtype)));
                add("collective", quoted(call.func));
                add("bytes", call.bytes.to_string());
                add("sequence", call.sequence.to_string());
                if self.is_work() {
                    // What has a stream is a kernel to these tools.
                    add("stream", self.lane.to_string());
                }
                call.algorithm.iter().for_each(|algorithm| add("algorithm", quoted(algorithm)));
                call.op.iter().for_each(|op| add("op", quoted(op)));
                call.protocol.iter().for_each(|protocol| add("protocol", quoted(protocol)));
                call.path.iter().for_each(|path| add("path", quoted(path)));
                call.root.iter().for_each(|root| add("Src Rank", root.to_string()));
                if let Some(peer) = call.peer {
                    add(if call.func == "recv" { "Src Rank" } else { "Dst Rank" }, peer.to_string());
                    add("peer", peer.to_string());
                }
                call.call_id.iter().for_each(|id| add("call", id.to_string()));
                if call.channels > 0 {
                    add("channels", call.channels.to_string());
                    add("chunk bytes", call.chunk_bytes.to_string());
                }
            }
            Of::ProxyOp(op) => {
                add("channel", op.channel.to_string());
                add("peer", op.peer.to_string());
            }
            Of::ProxyStep(step) => add("bytes", step.bytes.to_string()),
            _ => {}
        }
        text.push_str(&self.states);
        text
    }
}

/// A file being written.
pub(crate) struct Trace {
    file: Option<BufWriter<File>>,
    path: String,
    rank: u32,
    nranks: u32,
    /// Its first row: several communicators of a rank may be looked at together.
    first_row: u64,
}

impl Trace {
    /// A file of its own for each rank and communicator: several may be in one process.
    pub(crate) fn new(prefix: &str, comm: &Comm) -> Trace {
        let path = format!("{prefix}-{}-{:016x}.json", comm.rank, comm.id);
        let file = File::create(&path).map(BufWriter::new);
        if let Err(error) = &file {
            // A profiler cannot fail the program; it can say why it is silent.
            tracing::error!("expected to write a trace to {path}, found: {error}");
        }
        let mut trace = Trace {
            file: file.ok(),
            path,
            rank: comm.rank,
            nranks: comm.nranks,
            first_row: comm.id % 200_000 * ROWS,
        };
        // Tools look for the rank as `"rank": N`, with the space. Times are those of a clock that all processes
        // of a host share; the base makes them the time of day.
        trace.put(&format!(
            "{{\"schemaVersion\": 1, \"distributedInfo\": {{\"backend\": \"ccl\", \"rank\": {}, \
             \"world_size\": {}, \"nodes\": {}}}, \"cclInfo\": {{\"communicator\": \"{:016x}\", \
             \"process\": {}, \"host\": {}}}, \"displayTimeUnit\": \"ns\", \
             \"baseTimeNanoseconds\": {}, \"traceName\": {}, \"traceEvents\": [",
            comm.rank,
            comm.nranks,
            comm.nnodes,
            comm.id,
            comm.process,
            quoted(&clock::host()),
            clock::base_ns(),
            quoted(&trace.path),
        ));
        let own = format!("{:016x}", comm.id);
        trace.put(&format!(
            "\n{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"args\": {{\"name\": \"rank {}\"}}}}",
            comm.rank, comm.rank,
        ));
        for (lane, name) in FIRST {
            trace.put(&format!(
                ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \
                 \"args\": {{\"name\": \"{name} of {own}\"}}}}",
                comm.rank,
                trace.row(lane),
            ));
        }
        trace
    }

    /// A slice, now that its end is known. Times are microseconds; three digits keep the nanoseconds.
    pub(crate) fn write(&mut self, slice: &Slice, until_ns: u64) {
        let category = match slice.kind {
            Kind::GroupApi | Kind::CollApi | Kind::P2pApi => "cpu_op",
            Kind::ProxyCtrl => "progress",
            Kind::ProxyOp | Kind::ProxyStep => "network",
            Kind::Group => "group",
            _ => "kernel",
        };
        let micros = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        self.put(&format!(
            ",\n{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, \
             \"dur\": {}, \"args\": {{{}}}}}",
            quoted(&slice.name()),
            self.rank,
            self.row(slice.lane),
            micros(slice.since_ns),
            micros(until_ns.saturating_sub(slice.since_ns)),
            slice.arguments(self.nranks),
        ));
    }

    /// The row of a lane among those of all communicators. Viewers have 31 bits for it.
    fn row(&self, lane: u32) -> u64 {
        self.first_row + u64::from(lane)
    }

    /// The end, and what became of all events.
    pub(crate) fn finish(mut self, summary: &Summary) {
        self.put(&format!(
            "\n], \"cclSummary\": {{\"started\": {}, \"refused\": {}, \"dropped_events\": {}, \
             \"dropped_states\": {}}}}}\n",
            summary.started, summary.refused, summary.dropped_events, summary.dropped_states,
        ));
        if let Some(Err(error)) = self.file.as_mut().map(Write::flush) {
            tracing::error!("expected to finish the trace {}, found: {error}", self.path);
        } else if self.file.is_some() {
            tracing::info!("wrote {}", self.path);
        }
    }

    /// After a failure, a full disk for instance, nothing more is written.
    fn put(&mut self, text: &str) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(text.as_bytes()) {
            tracing::error!("expected to write the trace {}, found: {error}", self.path);
            self.file = None;
        }
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => _ = write!(quoted, "\\u{:04x}", letter as u32),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// More than a communicator has.
const ROWS: u64 = 10_000;
