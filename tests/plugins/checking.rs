//! A profiler that checks its host: every promise of `ccl_profiler.h`, and leaves a report for each
//! communicator in the folder that `CHECK_FOLDER` names.
//!
//! `CHECK_REFUSE=N` refuses one event in N, by chance, and `any` a share that each communicator has for itself, none and all
//! among them; `CHECK_SLOW_MS` takes its time over the first
//! event; `CHECK_MASK=toggle` asks for their calls only, at first and after every second launch.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use ccl_plugin::profiler::{Comm, Event, Kind, Mask, Of, Profiler, State, StateKind, Summary};
use ccl_plugin::{Error, Result};

ccl_plugin::export_profiler!(Checking);

struct Checking {
    file: PathBuf,
    comm: Comm,
    mask: Mask,
    /// Every event there was, by id.
    events: HashMap<u64, Seen>,
    open: usize,
    counts: BTreeMap<String, u64>,
    wrong: Vec<String>,
    refuse: u64,
    refused: u64,
    slow: Duration,
    toggles: bool,
    launches: u64,
    /// A small generator: the same sequence each time.
    chance: u64,
}

/// What is known of an event.
struct Seen {
    kind: Kind,
    parent: Option<u64>,
    taken: bool,
    stopped: bool,
    since_ns: u64,
    /// Open events whose handle's parent it is.
    children: u64,
    below: Option<u64>,
}

impl Profiler for Checking {
    const NAME: &'static CStr = c"checking";
    type Handle = u64;

    fn init(comm: &Comm, mask: Mask) -> Result<Checking> {
        let folder = std::env::var_os("CHECK_FOLDER")
            .ok_or_else(|| Error::invalid("expected CHECK_FOLDER to name a folder, found nothing"))?;
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let file = format!("{:016x}-{}-{}.txt", comm.id, comm.rank, comm.process);
        let refuse = match std::env::var("CHECK_REFUSE").as_deref() {
            Ok("any") => comm.id % 6,
            _ => number("CHECK_REFUSE"),
        };
        // Until there is a report, this says that there should be one.
        let begun = PathBuf::from(&folder).join(&file).with_extension("begun");
        std::fs::write(&begun, "")
            .map_err(|error| Error::invalid(format!("write {}: {error}", begun.display())))?;
        let toggles = std::env::var("CHECK_MASK").is_ok_and(|mask| mask == "toggle");
        mask.set(if toggles { Kind::CollApi.bit() } else { u64::MAX });
        Ok(Checking {
            file: PathBuf::from(folder).join(file),
            comm: comm.clone(),
            mask,
            events: HashMap::new(),
            open: 0,
            counts: BTreeMap::new(),
            wrong: Vec::new(),
            refuse,
            refused: 0,
            slow: Duration::from_millis(number("CHECK_SLOW_MS")),
            toggles,
            launches: 0,
            chance: comm.id | 1,
        })
    }

    fn start_event(&mut self, event: &Event<'_, u64>) -> Option<u64> {
        std::thread::sleep(std::mem::take(&mut self.slow));
        self.count(format!("{:?}", event.kind));
        self.describe(event);
        self.launched(event.kind);
        let below = self.nearest_taken(event.parent_id);
        let given = event.parent.map(|(id, _)| *id);
        self.expect(given == below, || format!("{}: parent {given:?}, not {below:?}", event.id));
        if let Some((id, kind)) = event.parent {
            let right = self.events.get(id).is_some_and(|seen| seen.kind == kind && !seen.stopped);
            self.expect(right, || format!("{}: parent {id} is not an open {kind:?}", event.id));
        }
        let taken = !self.by_chance();
        if taken {
            self.open += 1;
            if let Some(seen) = below.and_then(|id| self.events.get_mut(&id)) {
                seen.children += 1;
            }
        } else {
            self.refused += 1;
        }
        let (kind, parent, since_ns) = (event.kind, event.parent_id, event.time_ns);
        let seen = Seen { kind, parent, taken, stopped: false, since_ns, children: 0, below };
        let before = self.events.insert(event.id, seen);
        self.expect(before.is_none(), || format!("{}: started twice", event.id));
        taken.then_some(event.id)
    }

    fn stop_event(&mut self, handle: u64, time_ns: u64) {
        self.open -= 1;
        let Some(seen) = self.events.get_mut(&handle) else {
            return self.wrong.push(format!("{handle}: stopped before it started"));
        };
        let problem = if seen.stopped {
            "stopped twice"
        } else if seen.children > 0 {
            "stopped before its children"
        } else if time_ns < seen.since_ns {
            "stopped before it started, by the clock"
        } else {
            ""
        };
        seen.stopped = true;
        let below = seen.below;
        self.expect(problem.is_empty(), || format!("{handle}: {problem}"));
        if let Some(parent) = below.and_then(|id| self.events.get_mut(&id)) {
            parent.children -= 1;
        }
    }

    fn record_event_state(&mut self, handle: &mut u64, state: &State) {
        self.count(format!("state {:?}", state.kind));
        let kind = self.events.get(handle).filter(|seen| !seen.stopped).map(|seen| seen.kind);
        let right = kind.is_some_and(|kind| fits(kind, state.kind));
        self.expect(right, || format!("{handle}: state {:?} of {kind:?}", state.kind));
    }

    fn finalize(mut self, summary: &Summary) {
        let (open, refused, started) = (self.open, self.refused, self.events.len() as u64);
        self.expect(open == 0, || format!("{open} events are open at the end"));
        self.expect(summary.started == started, || format!("{started} events, not {}", summary.started));
        self.expect(summary.refused == refused, || format!("{refused} refused, not {}", summary.refused));
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "rank {}\nnranks {}\nlaunches {}",
            self.comm.rank, self.comm.nranks, self.launches
        );
        let _ = writeln!(text, "refused {}\ndropped {}", summary.refused, summary.dropped_events);
        self.counts.iter().for_each(|(what, count)| _ = writeln!(text, "{what} {count}"));
        self.wrong.iter().take(20).for_each(|wrong| _ = writeln!(text, "WRONG {wrong}"));
        // Whoever finds no report knows that something went wrong.
        let begun = self.file.with_extension("begun");
        let _ = std::fs::write(&begun, text).and_then(|()| std::fs::rename(&begun, &self.file));
    }
}

impl Checking {
    fn expect(&mut self, right: bool, words: impl FnOnce() -> String) {
        if !right {
            self.wrong.push(words());
        }
    }

    fn count(&mut self, what: String) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// The first of an event and its ancestors that was taken and not stopped.
    fn nearest_taken(&self, mut id: Option<u64>) -> Option<u64> {
        while let Some(seen) = id.and_then(|id| self.events.get(&id)) {
            if seen.taken && !seen.stopped {
                return id;
            }
            id = seen.parent;
        }
        None
    }

    /// Whether what an event is about makes sense.
    fn describe(&mut self, event: &Event<'_, u64>) {
        let (id, n) = (event.id, self.comm.nranks);
        let right = match (event.kind, &event.of) {
            (Kind::Coll, Of::Call(call)) => {
                let empty = call.func == "barrier" || call.count == 0;
                call.algorithm.is_some()
                    && call.protocol.is_some()
                    && call.sequence > 0
                    && (empty || call.bytes > 0)
            }
            (Kind::P2p, Of::Call(call)) => call.peer.is_some_and(|peer| peer < n) && call.path.is_some(),
            (Kind::CollApi | Kind::P2pApi, Of::Call(call)) => {
                call.algorithm.is_none() && !call.dtype.is_empty()
            }
            (Kind::ProxyOp, Of::ProxyOp(op)) => op.peer < n && op.path == Some("net"),
            (Kind::ProxyStep, Of::ProxyStep(_)) | (Kind::Group | Kind::GroupApi, Of::Group(_)) => true,
            (Kind::ProxyCtrl, Of::Nothing) => true,
            _ => false,
        };
        self.expect(right, || format!("{id}: {:?} of {:?}", event.kind, event.of));
        self.expect(event.rank == self.comm.rank, || format!("{id}: of rank {}", event.rank));
        if let Of::Call(call) = event.of {
            self.count(format!("func {:?} {}", event.kind, call.func));
            let known = call.call_id.is_none_or(|id| self.events.contains_key(&id));
            self.expect(known, || format!("{id}: of an unknown call"));
        }
    }

    fn launched(&mut self, kind: Kind) {
        if kind == Kind::GroupApi {
            self.launches += 1;
            if self.toggles {
                let all = !self.launches.is_multiple_of(2);
                self.mask.set(if all { u64::MAX } else { Kind::CollApi.bit() });
            }
        }
    }

    fn by_chance(&mut self) -> bool {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.refuse > 0 && (self.chance >> 11).is_multiple_of(self.refuse)
    }
}

fn fits(kind: Kind, state: StateKind) -> bool {
    use StateKind::*;
    match kind {
        Kind::ProxyOp => state == ProxyOpProgress,
        Kind::ProxyStep => [SendPeerWait, SendWait, RecvWait, RecvDone].contains(&state),
        Kind::ProxyCtrl => {
            [CtrlIdle, CtrlActive, CtrlSleep, CtrlWakeup, CtrlAppend, CtrlAppendEnd].contains(&state)
        }
        Kind::GroupApi => [GroupStartStop, GroupEndStart].contains(&state),
        _ => false,
    }
}
