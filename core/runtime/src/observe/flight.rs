//! The flight recorder: what a rank did of late, in a file that PyTorch's analyser (`torchfrtrace`) reads.
//!
//! Boards remember the last operations of every communicator; nothing is added to a call but the time, to some
//! milliseconds. A rank writes one file for the communicator that it joined and all that were split from it: a pickle of
//! the analyser's format "2.10", named by a prefix and the rank. It is written before a failure is returned to the caller;
//! for a rank that makes no call, a thread of its own writes it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ccl_plan::{Collective, Dtype, Rank, Shape};
use serde::Serialize;
use serde_pickle::SerOptions;

use super::board::{Board, Remembered, Signature, now_ns};
use crate::error::{Error, Result};

/// What the communicators of one rank write together.
#[derive(Debug)]
pub(crate) struct Flight {
    rank: Rank,
    /// Where to write when the communicator fails, if anywhere.
    prefix: Option<PathBuf>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    groups: Vec<Group>,
    /// A failure has been written.
    written: bool,
}

/// A communicator.
#[derive(Debug)]
struct Group {
    place: Place,
    board: Weak<Board>,
}

/// Where a communicator's operations are written, and as what.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) flight: Arc<Flight>,
    pub(crate) place: Place,
}

/// A communicator among those that were split from each other.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Of the first one `0`; of one split from it `0.3.1`: the fourth split, color 1.
    name: String,
    /// Its ranks, by those of the first one.
    ranks: Arc<[Rank]>,
}

/// A send or receive that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) collective: Collective,
    pub(crate) peer: Rank,
    pub(crate) count: usize,
    pub(crate) dtype: Dtype,
}

impl Place {
    /// The communicator that `n` ranks join.
    pub(crate) fn first(n: u32) -> Place {
        Place { name: "0".to_owned(), ranks: (0..n).map(Rank).collect() }
    }

    /// One of these of its ranks, of a color, from its split of this number.
    pub(crate) fn split(&self, number: u64, color: u32, members: &[Rank]) -> Place {
        let name = format!("{}.{number}.{color}", self.name);
        Place { name, ranks: members.iter().map(|member| self.ranks[member.index()]).collect() }
    }
}

impl Flight {
    /// What `rank` of a communicator that it joined writes into `prefix` and its number.
    pub(crate) fn new(rank: Rank, prefix: Option<&Path>) -> Flight {
        Flight { rank, prefix: prefix.map(Path::to_owned), inner: Mutex::default() }
    }

    /// From now on what `board` remembers is written as well, as long as it lives.
    pub(crate) fn add(&self, place: Place, board: &Arc<Board>) {
        let mut inner = self.lock();
        inner.groups.retain(|group| group.board.strong_count() > 0);
        inner.groups.push(Group { place, board: Arc::downgrade(board) });
    }

    /// Writes the file of a failure, if settings name one: once, and again where `messages` of `board` are under way.
    /// Blocks for the disk; another thread that writes it is waited for.
    pub(crate) fn failed(&self, board: &Arc<Board>, messages: &[Message]) {
        let Some(prefix) = &self.prefix else { return };
        let mut inner = self.lock();
        // The thread of an alarm may have come first, and knows no messages.
        if std::mem::replace(&mut inner.written, true) && messages.is_empty() {
            return;
        }
        let path = self.path(prefix);
        match write(&path, &self.pickle(&inner.groups, board, messages)) {
            Ok(()) => {
                tracing::warn!(target: "ccl::flight", rank = self.rank.0, file = %path.display(), "the last operations are written");
            }
            Err(error) => {
                tracing::warn!(target: "ccl::flight", rank = self.rank.0, %error, "nothing is written")
            }
        }
    }

    /// The same on a thread of its own, for whoever must not block.
    pub(crate) fn write_apart(flight: &Arc<Flight>, board: &Weak<Board>) {
        let (flight, Some(board)) = (Arc::clone(flight), board.upgrade()) else { return };
        let write = move || flight.failed(&board, &[]);
        if let Err(error) = std::thread::Builder::new().name("ccl-flight".into()).spawn(write) {
            tracing::warn!(target: "ccl::flight", %error, "nothing is written");
        }
    }

    /// Whether a failure is to be written.
    pub(crate) fn writes_failures(&self) -> bool {
        self.prefix.is_some()
    }

    /// Writes the file now, into `prefix` and the rank's number; its path.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn write_to(
        &self,
        prefix: &Path,
        board: &Arc<Board>,
        messages: &[Message],
    ) -> Result<PathBuf> {
        let path = self.path(prefix);
        write(&path, &self.pickle(&self.lock().groups, board, messages))?;
        Ok(path)
    }

    fn path(&self, prefix: &Path) -> PathBuf {
        let mut name = prefix.as_os_str().to_owned();
        name.push(self.rank.to_string());
        name.into()
    }

    fn pickle(&self, groups: &[Group], board: &Arc<Board>, messages: &[Message]) -> Vec<u8> {
        let mut file = File { version: "2.10", comm_lib_version: LIBRARY, ..File::default() };
        for (id, group) in groups.iter().enumerate() {
            let Some(shown) = group.board.upgrade() else { continue };
            file.add(id, &group.place, &shown);
            if Arc::ptr_eq(&shown, board) {
                for message in messages {
                    file.add_message(id, &group.place, self.rank, message);
                }
            }
        }
        file.entries.sort_by_key(|entry| entry.time_created_ns);
        for (id, entry) in file.entries.iter_mut().enumerate() {
            entry.record_id = id;
        }
        // Strings, numbers, lists and maps with strings for keys: nothing that has no form.
        serde_pickle::to_vec(&file, SerOptions::new().proto_v2()).unwrap_or_default()
    }

    /// A panic while the lock was held left nothing half done.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default, Serialize)]
struct File {
    version: &'static str,
    comm_lib_version: &'static str,
    entries: Vec<Entry>,
    pg_config: BTreeMap<String, Config>,
    pg_status: BTreeMap<String, Status>,
}

#[derive(Serialize)]
struct Config {
    name: String,
    desc: String,
    ranks: String,
}

/// Numbers of operations, counted from 1; 0 if there was none.
#[derive(Serialize)]
struct Status {
    last_enqueued_collective: u64,
    last_started_collective: u64,
    last_completed_collective: u64,
}

#[derive(Serialize)]
struct Entry {
    record_id: usize,
    pg_id: usize,
    process_group: (String, &'static str),
    collective_seq_id: u64,
    p2p_seq_id: u64,
    op_id: u64,
    is_p2p: bool,
    profiling_name: String,
    input_sizes: Vec<Vec<u64>>,
    input_dtypes: Vec<&'static str>,
    output_sizes: Vec<Vec<u64>>,
    output_dtypes: Vec<&'static str>,
    state: &'static str,
    retired: bool,
    time_created_ns: u64,
    time_discovered_started_ns: Option<u64>,
    time_discovered_completed_ns: Option<u64>,
    timeout_ms: u64,
    frames: Vec<Frame>,
}

/// Where a call was made: nobody knows.
#[derive(Serialize)]
struct Frame {
    name: String,
    filename: String,
    line: u32,
}

impl File {
    fn add(&mut self, id: usize, place: &Place, board: &Board) {
        let (entries, shown) = (board.remembered(), board.snapshot());
        let completed = shown.last_completed.unwrap_or(0);
        let entered = shown.last_entered.unwrap_or(0);
        let last_started_collective = entered.min(completed + 1);
        let status = Status {
            last_enqueued_collective: entered,
            last_started_collective,
            last_completed_collective: completed,
        };
        self.pg_status.insert(id.to_string(), status);
        let ranks: Vec<String> = place.ranks.iter().map(Rank::to_string).collect();
        let config = Config {
            name: place.name.clone(),
            desc: DESCRIPTION.to_owned(),
            ranks: format!("[{}]", ranks.join(", ")),
        };
        self.pg_config.insert(id.to_string(), config);
        for Remembered { sequence, signature, entered_ns } in entries {
            let state = match sequence {
                _ if sequence <= completed => "completed",
                _ if sequence == completed + 1 => "started",
                _ => "scheduled",
            };
            let size = |shape| size(shape, &signature, place.ranks.len());
            let collective = signature.collective;
            self.entries.push(Entry {
                collective_seq_id: sequence,
                op_id: sequence,
                profiling_name: format!("ccl:{}", collective.name().trim_end_matches("_v")),
                input_sizes: size(collective.input()),
                output_sizes: size(collective.output()),
                ..Entry::bare(id, place, signature.dtype, (state, entered_ns))
            });
        }
    }

    fn add_message(&mut self, id: usize, place: &Place, rank: Rank, message: &Message) {
        let Message { collective, peer, count, dtype } = *message;
        let peer = place.ranks[peer.index()];
        let (name, sizes) = (collective.name(), vec![vec![count as u64]]);
        let sends = collective == Collective::Send;
        let way = if sends { "->" } else { "<-" };
        let (input_sizes, output_sizes) = if sends { (sizes, Vec::new()) } else { (Vec::new(), sizes) };
        self.entries.push(Entry {
            is_p2p: true,
            profiling_name: format!("ccl:{name} {rank}{way}{peer}"),
            input_sizes,
            output_sizes,
            ..Entry::bare(id, place, Some(dtype), ("started", now_ns()))
        });
    }
}

impl Entry {
    fn bare(
        id: usize,
        place: &Place,
        dtype: Option<Dtype>,
        (state, time_created_ns): (&'static str, u64),
    ) -> Entry {
        let dtypes: Vec<_> = dtype.iter().map(|dtype| scalar_type(*dtype)).collect();
        Entry {
            record_id: 0,
            pg_id: id,
            process_group: (place.name.clone(), DESCRIPTION),
            collective_seq_id: 0,
            p2p_seq_id: 0,
            op_id: 0,
            is_p2p: false,
            profiling_name: String::new(),
            input_sizes: Vec::new(),
            input_dtypes: dtypes.clone(),
            output_sizes: Vec::new(),
            output_dtypes: dtypes,
            state,
            retired: state == "completed",
            time_created_ns,
            time_discovered_started_ns: None,
            time_discovered_completed_ns: None,
            timeout_ms: 0,
            frames: Vec::new(),
        }
    }
}

/// The elements of a buffer, as the analyser has them: a list of tensors.
fn size(shape: Shape, signature: &Signature, ranks: usize) -> Vec<Vec<u64>> {
    match shape {
        Shape::None => Vec::new(),
        Shape::Whole | Shape::Own => vec![vec![signature.count]],
        Shape::PerRank => vec![vec![signature.count * ranks as u64]],
    }
}

/// What PyTorch calls it.
const fn scalar_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::I8 => "Char",
        Dtype::U8 => "Byte",
        Dtype::I32 => "Int",
        Dtype::U32 => "UInt32",
        Dtype::I64 => "Long",
        Dtype::U64 => "UInt64",
        Dtype::F16 => "Half",
        Dtype::F32 => "Float",
        Dtype::F64 => "Double",
        Dtype::Bf16 => "BFloat16",
        Dtype::F8E4m3 => "Float8_e4m3fn",
        Dtype::F8E5m2 => "Float8_e5m2",
    }
}

/// Whole or not at all: a reader never finds half a file.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let readable = fs::Permissions::from_mode(0o644);
        let mut file =
            tempfile::Builder::new().permissions(readable).tempfile_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error).map(|_| ())
    };
    written().map_err(|error| {
        let doing = format!("write the last operations to {}", path.display());
        Error::system(&doing, error, "choose a prefix in a folder that can be written to: CCL_FLIGHT_FILE")
    })
}

const DESCRIPTION: &str = "ccl";
const LIBRARY: &str = concat!("ccl ", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ccl_plan::ReduceOp;
    use serde_pickle::{DeOptions, HashableValue, Value};

    use super::*;
    use crate::{Config, Request, local};

    /// A file as whoever reads it finds it.
    struct Read(Value);

    impl Read {
        fn file(path: &Path) -> Read {
            Read(serde_pickle::value_from_slice(&std::fs::read(path).unwrap(), DeOptions::new()).unwrap())
        }

        fn at(&self, key: &str) -> Value {
            let Value::Dict(dict) = &self.0 else { panic!("no dict: {}", self.0) };
            dict.get(&HashableValue::String(key.into())).unwrap_or_else(|| panic!("no {key}")).clone()
        }

        fn text(&self, key: &str) -> String {
            match self.at(key) {
                Value::String(text) => text,
                other => panic!("{key} is {other}"),
            }
        }

        fn entries(&self) -> Vec<Read> {
            match self.at("entries") {
                Value::List(entries) => entries.into_iter().map(Read).collect(),
                other => panic!("no list: {other}"),
            }
        }

        /// What each entry is, and how far.
        fn lines(&self) -> Vec<String> {
            let line = |entry: Read| {
                format!(
                    "{} {} {}",
                    entry.text("profiling_name"),
                    entry.at("input_sizes"),
                    entry.text("state")
                )
            };
            self.entries().into_iter().map(line).collect()
        }
    }

    #[test]
    fn a_rank_that_stays_away_is_behind_in_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("flight-");
        let vars = [("CCL_FLIGHT_FILE", prefix.to_str().unwrap()), ("CCL_TIMEOUT", "1s")];
        let config = Config::from_vars(vars).unwrap();
        let ends = local::try_run_with(&config, 3, |comm| {
            comm.all_reduce_in_place(&mut [1.0_f32; 5], ReduceOp::Sum)?;
            match comm.rank() {
                // It makes no call, and has a file all the same.
                Rank(2) => {
                    let until = std::time::Instant::now() + Duration::from_secs(30);
                    while !folder.path().join("flight-2").exists() && std::time::Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    Ok(())
                }
                _ => comm.barrier(),
            }
        });
        assert!(ends.unwrap()[..2].iter().all(Result::is_err));
        let done = "ccl:all_reduce [[5]] completed";
        for (rank, expected) in [
            (0, vec![done, "ccl:barrier [] started"]),
            (1, vec![done, "ccl:barrier [] started"]),
            (2, vec![done]),
        ] {
            let file = Read::file(&folder.path().join(format!("flight-{rank}")));
            assert_eq!(
                (file.text("version").as_str(), file.lines()),
                ("2.10", expected.iter().map(ToString::to_string).collect())
            );
        }
    }

    #[test]
    fn what_is_split_is_written_with_the_ranks_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("");
        local::run(4, |comm| {
            let rank = comm.rank();
            // The last of the two first.
            let half = comm.split(Some(rank.0 % 2), -i64::from(rank.0))?.unwrap();
            half.all_gather(&[rank.0; 3], &mut [0; 6])?;
            let (mut got, to) = ([0_u8], Rank(1 - half.rank().0));
            if half.rank() == Rank(0) {
                half.run(Request::recv(&mut got, to))?;
            } else {
                half.run(Request::send(&[7_u8], to))?;
            }
            let path = comm.write_flight(&prefix)?;
            assert_eq!(path, folder.path().join(rank.to_string()));
            let file = Read::file(&path);
            assert_eq!(file.lines(), ["ccl:all_gather [[3]] completed"]);
            let groups = Read(file.at("pg_config"));
            assert_eq!(Read(groups.at("0")).text("ranks"), "[0, 1, 2, 3]");
            let half = Read(groups.at("1"));
            let ranks = if rank.0.is_multiple_of(2) { "[2, 0]" } else { "[3, 1]" };
            assert_eq!(
                (half.text("ranks").as_str(), half.text("name")),
                (ranks, format!("0.0.{}", rank.0 % 2))
            );
            comm.barrier()
        })
        .unwrap();
    }

    #[test]
    fn messages_under_way_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("f");
        let config =
            Config::from_vars([("CCL_FLIGHT_FILE", prefix.to_str().unwrap()), ("CCL_TIMEOUT", "1s")]);
        let ends = local::try_run_with(&config.unwrap(), 2, |comm| match comm.rank() {
            Rank(0) => comm.run(Request::recv(&mut [0.0_f64; 9], Rank(1))),
            _ => {
                std::thread::sleep(Duration::from_millis(1500));
                Ok(())
            }
        });
        assert!(ends.unwrap()[0].is_err());
        let [entry] = &Read::file(&folder.path().join("f0")).entries()[..] else { panic!("one entry") };
        assert_eq!(
            (entry.text("profiling_name"), entry.text("state")),
            ("ccl:recv 0<-1".into(), "started".into())
        );
        assert_eq!(
            (entry.at("output_sizes").to_string(), entry.at("is_p2p")),
            ("[[9]]".into(), Value::Bool(true))
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error =
            local::run(1, |comm| comm.write_flight(Path::new("/no/such/folder/f"))).unwrap_err().to_string();
        assert!(error.contains("/no/such/folder/f0") && error.contains("CCL_FLIGHT_FILE"), "{error}");
    }
}
