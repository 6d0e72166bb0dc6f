//! `ccl plugin check`: every clause of a plugin's contract, one after the other, each in a process of its own.

use std::process::{self, Command, ExitCode};
use std::time::Duration;

use ccl::{Error, Result, network};
use ccl_plugin_check::{CLAUSES, Clause, Subject, Verdict, clause, judge, judge_apart, report};
use serde::Serialize;

use crate::text;

/// Hold a plugin to its contract, clause by clause.
///
/// Each clause runs in a process of its own, so that a crash or a call that never returns is a verdict like any
/// other. Both ends of each connection are in that process. Ends with status 1 if a clause is broken.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ccl plugin check ./libccl-net-mine.so\n  \
    ccl plugin check ./libccl-net-mine.so --set interface=ib0 --json\n  \
    ccl plugin check ./libccl-net-mine.so --clause order --here    (for a debugger)\n  \
    ccl plugin check 'fault:socket?corrupt_bit=3'                  (a network that breaks clauses)")]
pub(crate) struct Args {
    /// The plugin: a file, or a name as in CCL_NET_PLUGIN; `socket` is the network that is linked in
    #[arg(value_name = "FILE", required_unless_present = "clauses")]
    file: Option<String>,
    /// The kind of plugin
    #[arg(long, value_enum, default_value = "net")]
    kind: Kind,
    /// Check these clauses only; may be repeated
    #[arg(long = "clause", value_name = "NAME", value_parser = parse_clause)]
    only: Vec<&'static Clause>,
    /// List the clauses
    #[arg(long)]
    clauses: bool,
    /// A setting for the plugin's init; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
    /// Which of the plugin's devices
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
}

/// Checks a plugin, or lists what would be checked.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let Some(file) = args.file.as_deref().filter(|_| !args.clauses) else {
        return text::print(&clauses()).map(|()| ExitCode::SUCCESS);
    };
    let all: Vec<&'static Clause> = CLAUSES.iter().collect();
    let chosen = if args.only.is_empty() { &all } else { &args.only };
    if args.report {
        let verdict = judge(chosen[0], &subject(args, file));
        report(&verdict)
            .map_err(|error| Error::system("write the verdict", error, "run it without --report"))?;
        // Without waiting for a call that never returns.
        process::exit(0);
    }
    let mut findings = Vec::new();
    for clause in chosen {
        let verdict = match args.here {
            true => judge(clause, &subject(args, file)),
            false => judge_apart(apart(args, file, clause)?, args.patience).map_err(cannot_start)?,
        };
        findings.push(Finding::new(clause, verdict));
    }
    text::print(&if args.json { json(file, &findings) } else { table(file, &findings) })?;
    let is_kept = findings.iter().all(|finding| finding.verdict != "breach");
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Kinds of plugins that can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// A network, cclNet_v1
    Net,
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

fn subject(args: &Args, file: &str) -> Subject {
    let Kind::Net = args.kind;
    let file = file.to_owned();
    let mut subject = Subject::new(move || network::named(&file).map_err(|error| error.to_string()));
    subject.reference = network::named("socket").ok();
    subject.settings = args.settings.clone();
    subject.device = args.device;
    subject.patience = args.patience;
    subject
}

/// This command for one clause.
fn apart(args: &Args, file: &str, clause: &Clause) -> Result<Command> {
    let me = std::env::current_exe().map_err(cannot_start)?;
    let mut command = Command::new(me);
    command.args(["plugin", "check", "--report", "--clause", clause.name]);
    command.args(["--device", &args.device.to_string()]);
    command.args(["--patience", &args.patience.as_secs_f64().to_string()]);
    for (key, value) in &args.settings {
        command.arg(format!("--set={key}={value}"));
    }
    command.arg("--").arg(file);
    Ok(command)
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::system("start a process for a clause", error, "use --here, which needs none")
}

fn parse_clause(name: &str) -> Result<&'static Clause, String> {
    clause(name).ok_or_else(|| {
        let names: Vec<_> = CLAUSES.iter().map(|clause| clause.name).collect();
        format!("expected one of {}, found `{name}`", names.join(", "))
    })
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| format!("expected a key and its value as in sockets=2, found `{text}`"))
}

fn clauses() -> String {
    let mut table = text::table(["clause", "promise"]);
    for clause in CLAUSES {
        table.add_row([clause.name, clause.promise]);
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

fn json(file: &str, findings: &[Finding]) -> String {
    let ok = findings.iter().all(|finding| finding.verdict != "breach");
    let value = serde_json::json!({ "plugin": file, "kind": "net", "ok": ok, "clauses": findings });
    format!("{value}\n")
}
