//! `ccl plugin list`: what would be loaded, and why.

use std::process::ExitCode;

use ccl::network::{self, Candidate, Verdict};
use ccl::{Config, Result};
use serde::Serialize;

use crate::text;

/// Say which plugins would be used with these settings, and why the others would not.
///
/// A line for each file that is considered, in the order in which they are, with the versions of the contract
/// that it offers. Loads them, which runs their initialisers. Ends with status 1 if a kind that is needed has none.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ccl plugin list\n  \
    CCL_NET_PLUGIN=./libccl-net-mine.so,socket ccl plugin list --json")]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Looks at every kind.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let config = Config::load()?;
    let rows: Vec<Row> = KINDS.iter().flat_map(|kind| (kind.rows)(kind.name, &config)).collect();
    let problem = rows.iter().find(|row| row.verdict == Standing::Problem);
    text::print(&if args.json { json(&rows) } else { table(&rows) })?;
    Ok(if problem.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One kind of plugin, and how its candidates are found.
struct Kind {
    name: &'static str,
    rows: fn(&'static str, &Config) -> Vec<Row>,
}

/// Every kind.
const KINDS: &[Kind] = &[Kind { name: "net", rows: networks }, Kind { name: "env", rows: envs }];

/// One candidate.
#[derive(Debug, Serialize)]
struct Row {
    kind: &'static str,
    file: String,
    offers: Vec<String>,
    verdict: Standing,
    why: String,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Standing {
    /// It would be used.
    Chosen,
    /// It could be, if it were asked for.
    Unused,
    /// It could not.
    Refused,
    /// Nothing of this kind can be used, and something has to be.
    Problem,
}

impl Standing {
    fn words(self) -> &'static str {
        match self {
            Standing::Chosen => "chosen",
            Standing::Unused => "not used",
            Standing::Refused => "refused",
            Standing::Problem => "!! none",
        }
    }
}

impl Row {
    /// A file that a host looked at.
    fn of(kind: &'static str, candidate: Candidate) -> Row {
        let (verdict, why) = match candidate.verdict {
            Verdict::Chosen(how) => (Standing::Chosen, how),
            Verdict::Refused(why) => (Standing::Refused, why),
        };
        Row { kind, file: candidate.file.display().to_string(), offers: candidate.versions, verdict, why }
    }
}

/// Files in the order of the settings, then what is linked in.
fn networks(kind: &'static str, config: &Config) -> Vec<Row> {
    let mut rows: Vec<Row> =
        network::candidates(config).into_iter().map(|candidate| Row::of(kind, candidate)).collect();
    let chosen = network::choose(config);
    let (verdict, why) = match &chosen {
        Ok(plugin) if plugin.file().is_none() => {
            (Standing::Chosen, format!("network {}, {}", plugin.name(), plugin.checked_by()))
        }
        Ok(plugin) => (Standing::Unused, format!("{} comes before it", plugin.name())),
        Err(_) => (Standing::Unused, "a plugin was asked for".to_owned()),
    };
    rows.push(Row {
        kind,
        file: "(linked in)".to_owned(),
        offers: vec!["cclNet_v1".to_owned()],
        verdict,
        why,
    });
    if let Err(error) = chosen {
        let (file, why) = ("-".to_owned(), error.to_string());
        rows.push(Row { kind, file, offers: Vec::new(), verdict: Standing::Problem, why });
    }
    rows
}

/// Files in the order of the settings; none is needed.
fn envs(kind: &'static str, config: &Config) -> Vec<Row> {
    config.env_candidates().iter().map(|candidate| Row::of(kind, candidate.clone())).collect()
}

fn table(rows: &[Row]) -> String {
    let mut table = text::table(["kind", "file", "offers", "", "why"]);
    for row in rows {
        table.add_row([row.kind, &row.file, &row.offers.join(" "), row.verdict.words(), &row.why]);
    }
    format!("{}\n", table.trim_fmt())
}

fn json(rows: &[Row]) -> String {
    let ok = rows.iter().all(|row| row.verdict != Standing::Problem);
    format!("{}\n", serde_json::json!({ "ok": ok, "plugins": rows }))
}
