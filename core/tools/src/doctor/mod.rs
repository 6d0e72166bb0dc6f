//! `ccl doctor`: what would be used on this machine and why, before a job.

mod device;
mod machine;
mod network;
mod settings;
mod trial;

use std::process::ExitCode;

use ccl::{Config, Result};
use comfy_table::Table;
use serde::Serialize;

use crate::text;

/// Say what would be used on this machine, and why.
///
/// Looks and tries; changes nothing. Ends with status 1 if something would keep a job from running.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Leave out the trial, which runs two ranks for a moment
    #[arg(long)]
    no_trial: bool,
}

/// Looks at everything and prints it.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let mut findings = Vec::new();
    match Config::load() {
        Ok(config) => {
            findings.extend(machine::findings());
            findings.extend(device::findings(&config));
            findings.extend(network::findings(&config));
            findings.extend(settings::findings(&config));
            if !args.no_trial {
                findings.extend(trial::findings(&config));
            }
        }
        Err(error) => findings.push(Finding::problem("settings", "all", "cannot be read", error.to_string())),
    }
    text::print(&if args.json { json(&findings) } else { table(&findings) })?;
    let is_fit = findings.iter().all(|finding| finding.verdict != Verdict::Problem);
    Ok(if is_fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    topic: &'static str,
    what: String,
    found: String,
    /// Why it is so, or what to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
    verdict: Verdict,
}

/// Whether anybody should worry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// All is well, or it does not matter.
    Ok,
    /// It works, perhaps not as meant.
    Warning,
    /// A job would not run.
    Problem,
}

impl Finding {
    fn ok(
        topic: &'static str,
        what: impl Into<String>,
        found: impl Into<String>,
        why: impl Into<String>,
    ) -> Finding {
        Finding { topic, what: what.into(), found: found.into(), why: why.into(), verdict: Verdict::Ok }
    }

    fn warning(
        topic: &'static str,
        what: impl Into<String>,
        found: impl Into<String>,
        why: impl Into<String>,
    ) -> Finding {
        Finding { verdict: Verdict::Warning, ..Finding::ok(topic, what, found, why) }
    }

    fn problem(
        topic: &'static str,
        what: impl Into<String>,
        found: impl Into<String>,
        why: impl Into<String>,
    ) -> Finding {
        Finding { verdict: Verdict::Problem, ..Finding::ok(topic, what, found, why) }
    }
}

fn table(findings: &[Finding]) -> String {
    let mut table: Table = text::table(["", "what", "found", "why"]);
    let mut topic = "";
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "",
            Verdict::Warning => "! ",
            Verdict::Problem => "!! ",
        };
        let shown = if finding.topic == topic { "" } else { finding.topic };
        topic = finding.topic;
        table.add_row([shown, &finding.what, &finding.found, &format!("{mark}{}", finding.why)]);
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warning));
    let (version, table) = (env!("CARGO_PKG_VERSION"), table.trim_fmt());
    format!("ccl {version}\n{table}\n{problems} problems, {warnings} warnings\n")
}

fn json(findings: &[Finding]) -> String {
    let ok = findings.iter().all(|finding| finding.verdict != Verdict::Problem);
    let value = serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "ok": ok, "findings": findings });
    format!("{value}\n")
}
