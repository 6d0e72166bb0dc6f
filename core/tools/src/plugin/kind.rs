//! Which kind of plugin a file is, and how one of each kind is loaded to be checked.

use std::path::Path;

use ccl::config::SETTINGS;
use ccl::{Error, Result, network};
use ccl_plugin_check::{Env, EnvTable, Kind, Net, Profiler, Subject, Verdict};
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The kinds that have clauses, as values of an option.
pub(super) fn checkable() -> impl TypedValueParser<Value = Kind> {
    let names = with_clauses().map(Kind::name);
    PossibleValuesParser::new(names.collect::<Vec<_>>()).map(|name| {
        with_clauses().find(|kind| kind.name() == name).expect("the parser lets through these names only")
    })
}

/// The kinds that a file has tables of, by name. Loads it.
pub(super) fn offered(file: &str) -> Verdict {
    match Kind::of_file(Path::new(file)) {
        Ok(kinds) => Verdict::Ok(names(&kinds).join(" ")),
        Err(why) => Verdict::Breach(why),
    }
}

/// The one kind of an entry, as `offered` says. What says nothing of itself, or cannot be loaded, counts as a network.
pub(super) fn of(file: &str, offered: impl FnOnce() -> Result<Verdict>) -> Result<Kind> {
    if !is_file(file) {
        return Ok(Kind::Net);
    }
    let Verdict::Ok(names) = offered()? else { return Ok(Kind::Net) };
    let kinds: Vec<_> =
        Kind::ALL.into_iter().filter(|kind| names.split(' ').any(|name| name == kind.name())).collect();
    match kinds[..] {
        [] => Ok(Kind::Net),
        [only] if !only.clauses().is_empty() => Ok(only),
        [only] => Err(Error::usage(
            format!(
                "expected a plugin of a kind that can be checked, found that {file} is of the kind {only}"
            ),
            "`ccl plugin check --clauses` lists the kinds that can be",
        )),
        _ => Err(Error::usage(
            format!("expected a plugin of one kind, found that {file} is {names}"),
            "say which is to be checked with --kind",
        )),
    }
}

/// A network, on one of its devices.
pub(super) fn network(file: &str, device: u32, settings: &[(String, String)]) -> Subject {
    let file = file.to_owned();
    let mut net = Net::new(move || network::named(&file).map_err(|error| error.to_string()));
    net.reference = network::named("socket").ok();
    net.settings = settings.to_vec();
    net.device = device;
    net.into()
}

/// A profiler.
pub(super) fn profiler(file: &str) -> Subject {
    Profiler::named(file).into()
}

/// An env plugin, to be asked about the settings there are.
pub(super) fn env(file: &str) -> Subject {
    let file = file.to_owned();
    let mut env = Env::new(move || EnvTable::open(&file));
    let names = SETTINGS.iter().flat_map(|setting| [Some(setting.name), setting.alias]).flatten();
    env.names = names.map(str::to_owned).collect();
    env.into()
}

fn with_clauses() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| !kind.clauses().is_empty())
}

fn names(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.name()).collect()
}

/// A name, as opposed to a file, means another file for each kind.
fn is_file(entry: &str) -> bool {
    !entry.starts_with("fault:") && (entry.contains('/') || entry.ends_with(".so"))
}
