//! `ccl plugin check`: every clause of a plugin's contract, one after the other, each in a process of its own.

use std::process::{self, Command, ExitCode};
use std::time::Duration;

use ccl::{Error, Result};
use ccl_plugin_check::{Clause, Kind, Subject, Verdict, judge, judge_apart, report};
use serde::Serialize;

use crate::plugin::kind;
use crate::text;

/// Hold a plugin to its contract, clause by clause.
///
/// Each clause runs in a process of its own, so that a crash or a call that never returns is a verdict like any
/// other. Both ends of each connection of a network are in that process. Ends with status 1 if a clause is broken.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ccl plugin check ./libccl-net-mine.so\n  \
    ccl plugin check ./libccl-net-mine.so --set interface=ib0 --json\n  \
    ccl plugin check ./libccl-net-mine.so --clause order --here    (for a debugger)\n  \
    ccl plugin check 'fault:socket?corrupt_bit=3'                  (a network that breaks clauses)")]
pub(crate) struct Args {
    /// The plugin: a file, or a name as in CCL_NET_PLUGIN; `socket` is the network that is linked in
    #[arg(value_name = "FILE", required_unless_present = "clauses")]
    file: Option<String>,
    /// The kind of plugin; not said: the one that the file has a table of, else a network
    #[arg(long, value_parser = kind::checkable())]
    kind: Option<Kind>,
    /// Check these clauses only; may be repeated
    #[arg(long = "clause", value_name = "NAME")]
    only: Vec<String>,
    /// List the clauses
    #[arg(long)]
    clauses: bool,
    /// A setting for a network's init; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
    /// Which of a network's devices
    #[arg(long, value_name = "INDEX", default_value = "0")]
    device: u32,
    /// Seconds that a call may run, and anything that must come may take
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = crate::args::seconds)]
    patience: Duration,
    /// Run the clauses in this process
    #[arg(long)]
    here: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the verdict as the process that started this one reads it
    #[arg(long, hide = true)]
    report: bool,
    /// Write the kinds that the file has tables of, as a verdict
    #[arg(long, hide = true)]
    kinds: bool,
}

/// Checks a plugin, or lists what would be checked.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let Some(file) = args.file.as_deref().filter(|_| !args.clauses) else {
        return text::print(&clauses(args.kind)).map(|()| ExitCode::SUCCESS);
    };
    if args.kinds {
        return tell(&kind::offered(file));
    }
    let kind = match args.kind {
        Some(kind) => kind,
        None => kind::of(file, || match args.here {
            true => Ok(kind::offered(file)),
            false => judge_apart(command(file, &["--kinds"])?, args.patience).map_err(cannot_start),
        })?,
    };
    let chosen = chosen(kind, &args.only)?;
    if args.report {
        return tell(&judge(chosen[0], &subject(args, kind, file)?));
    }
    let mut findings = Vec::new();
    for clause in chosen {
        let verdict = match args.here {
            true => judge(clause, &subject(args, kind, file)?),
            false => judge_apart(apart(args, kind, file, clause)?, args.patience).map_err(cannot_start)?,
        };
        findings.push(Finding::new(clause, verdict));
    }
    text::print(&if args.json { json(kind, file, &findings) } else { table(file, &findings) })?;
    let is_kept = findings.iter().all(|finding| finding.verdict != "breach");
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a verdict for the process that started this one, and ends it without waiting for a call that never returns.
fn tell(verdict: &Verdict) -> Result<ExitCode> {
    report(verdict).map_err(|error| Error::system("write the verdict", error, "run it without --report"))?;
    process::exit(0);
}

/// The clauses that were asked for; all if none were.
fn chosen(kind: Kind, only: &[String]) -> Result<Vec<&'static Clause>> {
    if only.is_empty() {
        return Ok(kind.clauses().iter().collect());
    }
    let named = |name: &String| {
        kind.clause(name).ok_or_else(|| {
            let names: Vec<_> = kind.clauses().iter().map(|clause| clause.name).collect();
            Error::usage(
                format!("--clause: expected one of {}, found `{name}`", names.join(", ")),
                "`ccl plugin check --clauses` says what each promises",
            )
        })
    };
    only.iter().map(named).collect()
}

/// What became of a clause.
#[derive(Debug, Serialize)]
struct Finding {
    clause: &'static str,
    promise: &'static str,
    verdict: &'static str,
    words: String,
}

impl Finding {
    fn new(clause: &Clause, verdict: Verdict) -> Finding {
        let (name, words) = (verdict.name(), verdict.words().to_owned());
        Finding { clause: clause.name, promise: clause.promise, verdict: name, words }
    }
}

fn subject(args: &Args, kind: Kind, file: &str) -> Result<Subject> {
    let mut subject = match kind {
        Kind::Net => kind::network(file, args.device, &args.settings),
        Kind::Profiler => kind::profiler(file),
        Kind::Env => kind::env(file),
        _ => return Err(Error::bug(format!("there are clauses of the kind {kind}, and no way to load one"))),
    };
    subject.patience = args.patience;
    Ok(subject)
}

/// This command for one clause.
fn apart(args: &Args, kind: Kind, file: &str, clause: &Clause) -> Result<Command> {
    let (device, patience) = (args.device.to_string(), args.patience.as_secs_f64().to_string());
    let mut options = vec!["--report", "--kind", kind.name(), "--clause", clause.name];
    options.extend(["--device", &device, "--patience", &patience]);
    let settings: Vec<_> = args.settings.iter().map(|(key, value)| format!("--set={key}={value}")).collect();
    options.extend(settings.iter().map(String::as_str));
    command(file, &options)
}

/// This command for this file.
fn command(file: &str, options: &[&str]) -> Result<Command> {
    let me = std::env::current_exe().map_err(cannot_start)?;
    let mut command = Command::new(me);
    command.args(["plugin", "check"]).args(options).arg("--").arg(file);
    Ok(command)
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::system("start a process for a clause", error, "use --here, which needs none")
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| format!("expected a key and its value as in sockets=2, found `{text}`"))
}

/// Of one kind, or of all that can be checked.
fn clauses(kind: Option<Kind>) -> String {
    let mut table = text::table(["kind", "clause", "promise"]);
    for kind in Kind::ALL.into_iter().filter(|one| kind.is_none_or(|kind| kind == *one)) {
        for clause in kind.clauses() {
            table.add_row([kind.name(), clause.name, clause.promise]);
        }
    }
    format!("{}\n", table.trim_fmt())
}

fn table(file: &str, findings: &[Finding]) -> String {
    let mut table = text::table(["clause", "", "found"]);
    for finding in findings {
        let verdict = if finding.verdict == "breach" { "!! breach" } else { finding.verdict };
        table.add_row([finding.clause, verdict, &finding.words]);
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (kept, broken, skipped) = (count("ok"), count("breach"), count("skipped"));
    let table = table.trim_fmt();
    format!("{file}\n{table}\n{kept} clauses kept, {broken} broken, {skipped} skipped\n")
}

fn json(kind: Kind, file: &str, findings: &[Finding]) -> String {
    let ok = findings.iter().all(|finding| finding.verdict != "breach");
    let value = serde_json::json!({ "plugin": file, "kind": kind.name(), "ok": ok, "clauses": findings });
    format!("{value}\n")
}
