//! PMI-1, the protocol between a process and Hydra, on a connection that the process inherited.
//!
//! Each side sends lines `cmd=NAME key=value ...`. The store is `put`, then `barrier_in` by every rank,
//! then `get`. Values are text without spaces, so ours are hexadecimal.
//!
//! The connection belongs to the process. A program that is no MPI program has to `finalize` it: when it ends
//! without, Hydra takes that for a crash and kills the other ranks. And after `finalize` it is of no more use. A
//! program that has an MPI library leaves both beginning and end to that library.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use crate::bootstrap::store::Store;
use crate::bootstrap::store::wait::{Pauses, key_missing};
use crate::error::{Error, Fault, Result};

/// The store that PMI keeps for a job.
#[derive(Debug)]
pub struct Pmi {
    line: Line,
    owner: Owner,
    kvs: String,
    most_value_bytes: usize,
}

/// Who begins and ends the use of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This store, for one exchange.
    Ccl,
    /// An MPI library in the same process.
    Mpi,
}

impl Owner {
    /// Looks for an MPI library among what is mapped into this process.
    pub fn discover() -> Owner {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        match maps.lines().any(|line| MPI_LIBRARIES.iter().any(|library| line.contains(library))) {
            true => Owner::Mpi,
            false => Owner::Ccl,
        }
    }
}

impl Pmi {
    /// Begins to use the connection at `descriptor`, which stays the process's.
    ///
    /// # Errors
    /// The descriptor is no socket, or nobody answers on it by `deadline`.
    pub fn open(descriptor: RawFd, owner: Owner, deadline: Instant) -> Result<Pmi> {
        let mut line = Line::new(descriptor)?;
        if owner == Owner::Ccl {
            line.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline)?;
        }
        let maxes = line.ask("cmd=get_maxes", "maxes", deadline)?;
        let names = line.ask("cmd=get_my_kvsname", "my_kvsname", deadline)?;
        let kvs = names.get("kvsname").cloned().ok_or_else(|| line.misspoken("no kvsname"))?;
        let most = maxes.get("vallen_max").and_then(|most| most.parse().ok());
        Ok(Pmi { line, owner, kvs, most_value_bytes: most.unwrap_or(LEAST_VALUE_BYTES) })
    }

    /// PMI's name for the job, the same on all ranks and on no other job.
    pub fn job(&self) -> &str {
        &self.kvs
    }

    /// All ranks of the job come here before any goes on.
    fn barrier(&mut self, key: &str, deadline: Instant) -> Result<()> {
        let out = self.line.ask("cmd=barrier_in", "barrier_out", deadline);
        out.map(|_| ()).map_err(|error| match error.fault() {
            Fault::Timeout => {
                key_missing(key, ccl_plan::Rank(0), PLACE, "not all ranks came to the exchange")
            }
            _ => error,
        })
    }

    fn close(&mut self, deadline: Instant) -> Result<()> {
        match self.owner {
            Owner::Ccl => self.line.ask("cmd=finalize", "finalize_ack", deadline).map(|_| ()),
            Owner::Mpi => Ok(()),
        }
    }
}

impl Store for Pmi {
    fn set(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<()> {
        let text: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        if text.len() >= self.most_value_bytes {
            let cause = format!(
                "expected PMI to take a value of {} bytes, found a limit of {}",
                text.len(),
                self.most_value_bytes
            );
            return Err(Error::usage(cause, "set CCL_COMM_ID, or CCL_STORE=file:DIRECTORY"));
        }
        let put = format!("cmd=put kvsname={} key={} value={text}", self.kvs, short_key(key));
        self.line.ask(&put, "put_result", deadline)?;
        self.barrier(key, deadline)?;
        self.close(deadline)
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>> {
        self.barrier(key, deadline)?;
        let get = format!("cmd=get kvsname={} key={}", self.kvs, short_key(key));
        let found = self.line.ask(&get, "get_result", deadline)?;
        let value = found.get("value").and_then(|text| from_hex(text));
        let value = value.ok_or_else(|| self.line.misspoken("a value that is not hexadecimal"))?;
        self.close(deadline)?;
        Ok(value)
    }
}

/// The connection, as lines.
#[derive(Debug)]
struct Line {
    descriptor: RawFd,
    /// Bytes received behind the last line.
    rest: Vec<u8>,
}

impl Line {
    fn new(descriptor: RawFd) -> Result<Line> {
        let path = format!("/proc/self/fd/{descriptor}");
        if fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            return Ok(Line { descriptor, rest: Vec::new() });
        }
        let cause = format!("expected PMI_FD={descriptor} to be a socket, found none");
        Err(Error::usage(
            cause,
            "the descriptor must stay open between the launcher and this process: no shell script that closes it",
        ))
    }

    /// Sends a command and returns the fields of its answer.
    fn ask(&mut self, command: &str, answer: &str, deadline: Instant) -> Result<BTreeMap<String, String>> {
        let doing = command.split(' ').next().unwrap_or(command);
        let line = self.exchange(command, deadline).map_err(|error| self.broken(doing, error))?;
        let fields = parse(&line);
        let field = |name: &str| fields.get(name).map(String::as_str);
        if field("cmd") != Some(answer) {
            return Err(self.misspoken(&format!("`{line}` as the answer to `{doing}`")));
        }
        match field("rc") {
            None | Some("0") => Ok(fields),
            Some(_) => Err(self.misspoken(&format!("the refusal `{line}` as the answer to `{doing}`"))),
        }
    }

    fn exchange(&mut self, command: &str, deadline: Instant) -> io::Result<String> {
        let mut to_send = [command.as_bytes(), b"\n"].concat();
        while !to_send.is_empty() {
            let sent = retry(deadline, || send(self.descriptor, &to_send, SEND_FLAGS))?;
            to_send.drain(..sent);
        }
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<_> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            let mut bytes = [0; 1024];
            match retry(deadline, || recv(self.descriptor, &mut bytes, MsgFlags::MSG_DONTWAIT))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count if self.rest.len() < LONGEST_LINE => self.rest.extend_from_slice(&bytes[..count]),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without end")),
            }
        }
    }

    fn broken(&self, doing: &str, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let cause = format!(
                    "expected an answer to `{doing}` on PMI_FD={}, found none by the deadline",
                    self.descriptor
                );
                Error::new(
                    Fault::Timeout,
                    cause,
                    "see whether all ranks reached the same call, or raise CCL_INIT_TIMEOUT",
                )
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                let cause = format!(
                    "expected PMI to answer on PMI_FD={}, found the connection closed",
                    self.descriptor
                );
                Error::usage(
                    cause,
                    "PMI serves one exchange per process: split the first communicator, or set CCL_COMM_ID",
                )
            }
            _ => Error::system(
                &format!("speak PMI on descriptor {}", self.descriptor),
                error,
                "set CCL_COMM_ID instead",
            ),
        }
    }

    fn misspoken(&self, found: &str) -> Error {
        let cause = format!("expected PMI-1 on PMI_FD={}, found {found}", self.descriptor);
        Error::new(Fault::Network, cause, "set CCL_COMM_ID, or CCL_STORE=file:DIRECTORY, to meet without PMI")
    }
}

/// Repeats a call that does not block until it does something, fails, or `deadline` has passed.
fn retry(deadline: Instant, mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    let mut pauses = Pauses::new();
    loop {
        match call() {
            Err(Errno::EAGAIN | Errno::EINTR) if pauses.pause(deadline) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Err(io::ErrorKind::TimedOut.into()),
            result => return Ok(result?),
        }
    }
}

/// The fields of a line.
fn parse(line: &str) -> BTreeMap<String, String> {
    let fields = line.split_ascii_whitespace().filter_map(|field| field.split_once('='));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A key within PMI's limit of 64 characters.
fn short_key(key: &str) -> String {
    format!("ccl-{}", &blake3::hash(key.as_bytes()).to_hex()[..32])
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok())).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// A peer that is gone must be an error and not a signal.
const SEND_FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

const MPI_LIBRARIES: [&str; 3] = ["/libmpi", "/libpmi", "/libmpich"];

const PLACE: &str = "PMI's store";

/// What PMI-1 promises where the launcher does not say.
const LEAST_VALUE_BYTES: usize = 256;

const LONGEST_LINE: usize = 64 << 10;
