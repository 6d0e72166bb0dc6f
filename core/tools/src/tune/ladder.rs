//! Rules from measurements: for each collective a ladder of sizes.

use std::fs;
use std::path::Path;

use ccl::exec::{Reach, TunedLink, TunedRule, Tuning};
use ccl::{Error, Result};

use super::session::{Cell, Entry};

/// Puts the rules that follow from `cells` into a file, in place of those it has for the same links and number
/// of ranks, and what links cost. Other rules, and what it says of other links, stay, unless it is another machine's:
/// then nothing does, and that machine is returned.
pub(super) fn write(file: &Path, link: TunedLink, n: u32, cells: &[Cell]) -> Result<Option<String>> {
    let reach = link.reach;
    let found = if file.exists() { Tuning::read(file)? } else { Tuning::default() };
    let (mut tuning, other) = match found.machine.is_empty() || found.machine == Tuning::machine() {
        true => (found, None),
        false => (Tuning::default(), Some(found.machine)),
    };
    let measured = |rule: &TunedRule| {
        let same = rule.reach == Some(reach) && rule.ranks == Some(n);
        same && cells.iter().any(|cell| cell.collective.name() == rule.collective)
    };
    tuning.rules.retain(|rule| !measured(rule));
    tuning.rules.extend(rules((reach, n), cells));
    match tuning.links.iter_mut().find(|known| known.reach == reach) {
        Some(known) => *known = link.or(known),
        None => tuning.links.push(link),
    }
    tuning.machine = Tuning::machine();
    let failed = |error| Error::system(&format!("write {}", file.display()), error, "name a file with --out");
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // Whoever reads it meanwhile finds the old file or the new one.
    let beside = file.with_extension(format!("{}.new", std::process::id()));
    fs::write(&beside, tuning.to_toml()).and_then(|()| fs::rename(&beside, file)).map_err(failed)?;
    Ok(other)
}

/// The rules, for everything that was measured: a choice that is as good as any other is written down too, since the
/// same file says what links cost, and by that the model might choose another.
fn rules((reach, n): (Reach, u32), cells: &[Cell]) -> Vec<TunedRule> {
    let mut rules: Vec<TunedRule> = Vec::new();
    for of_one in cells.chunk_by(|a, b| a.collective == b.collective) {
        for (index, cell) in of_one.iter().enumerate() {
            let chosen = better(cell).unwrap_or(cell.chosen());
            let up_to_bytes = of_one.get(index + 1).map(|next| between(cell.bytes, next.bytes));
            let rule = TunedRule {
                collective: cell.collective.name().into(),
                ranks: Some(n),
                reach: Some(reach),
                up_to_bytes,
                algorithm: chosen.algorithm.name().into(),
                channels: 1,
            };
            match rules.last_mut() {
                Some(last) if last.collective == rule.collective && last.algorithm == rule.algorithm => {
                    last.up_to_bytes = up_to_bytes;
                }
                _ => rules.push(rule),
            }
        }
    }
    rules
}

/// The best, if it is enough better than what would be chosen without rules.
fn better(cell: &Cell) -> Option<Entry> {
    (cell.loss() > NOISE).then(|| cell.best())
}

/// The geometric mean.
fn between(a: u64, b: u64) -> u64 {
    ((a as f64) * (b as f64)).sqrt() as u64
}

/// Medians of a few loops differ by as much.
const NOISE: f64 = 1.03;

#[cfg(test)]
mod tests {
    use ccl::exec::Carried;
    use ccl::{Algorithm, Collective};

    use super::*;

    fn cell(bytes: u64, times: [(Algorithm, f64); 2]) -> Cell {
        let entry = |(algorithm, time_us)| Entry {
            algorithm,
            time_us,
            least_us: time_us,
            ratio: time_us / times[0].1,
            predicted_us: 1.0,
            chunk_count: 1,
            carried: Carried::Slots,
        };
        Cell { collective: Collective::Broadcast, bytes, entries: times.map(entry).into() }
    }

    #[test]
    fn neighbours_with_the_same_winner_are_one_rule() {
        use Algorithm::{Direct, Ring};
        let cells = [
            cell(8, [(Direct, 1.0), (Ring, 2.0)]),
            cell(32, [(Direct, 2.0), (Ring, 2.0)]),
            cell(128, [(Direct, 9.0), (Ring, 2.0)]),
            cell(512, [(Direct, 9.0), (Ring, 2.0)]),
        ];
        let rules = rules((Reach::Memory, 4), &cells);
        let short: Vec<_> = rules.iter().map(|r| (r.up_to_bytes, r.algorithm.as_str())).collect();
        assert_eq!(short, [(Some(64), "direct"), (None, "ring")]);
        let even = super::rules((Reach::Memory, 4), &cells[..2]);
        assert_eq!(
            even.iter().map(|r| (r.up_to_bytes, r.algorithm.as_str())).collect::<Vec<_>>(),
            [(None, "direct")]
        );
    }

    #[test]
    fn a_file_keeps_what_was_not_measured_again() {
        use Algorithm::{Direct, Ring};
        let folder = std::env::temp_dir().join(format!("ccl-ladder-{}", std::process::id()));
        let file = folder.join("sub").join("tuning.toml");
        let slow = [cell(8, [(Direct, 9.0), (Ring, 2.0)])];
        let link = |alpha_ns, switch_ns| TunedLink {
            reach: Reach::Memory,
            alpha_ns: Some(alpha_ns),
            switch_ns,
            message_ns: None,
            move_ns: None,
            beta_ns_per_byte: None,
            gamma_ns_per_byte: None,
        };
        write(&file, link(1.0, Some(7.0)), 4, &slow).unwrap();
        write(&file, link(2.0, None), 8, &slow).unwrap();
        write(&file, link(3.0, None), 4, &[cell(8, [(Ring, 9.0), (Direct, 2.0)])]).unwrap();
        let found = Tuning::read(&file).unwrap();
        let short: Vec<_> = found.rules.iter().map(|r| (r.ranks, r.algorithm.as_str())).collect();
        assert_eq!(short, [(Some(8), "ring"), (Some(4), "direct")]);
        // What was not measured again stays.
        assert_eq!(found.links, [link(3.0, Some(7.0))]);
        assert_eq!(found.machine, Tuning::machine());
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn nothing_of_another_machine_is_taken_for_this_one() {
        use Algorithm::{Direct, Ring};
        let folder = std::env::temp_dir().join(format!("ccl-ladder-other-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("tuning.toml");
        let link = |reach| TunedLink {
            reach,
            alpha_ns: Some(1.0),
            switch_ns: None,
            message_ns: None,
            move_ns: None,
            beta_ns_per_byte: None,
            gamma_ns_per_byte: None,
        };
        let cells = [cell(8, [(Direct, 9.0), (Ring, 2.0)])];
        let theirs = |machine: &str| Tuning {
            machine: machine.into(),
            links: vec![link(Reach::Network)],
            rules: rules((Reach::Network, 2), &cells),
        };
        fs::write(&file, theirs("another").to_toml()).unwrap();
        assert_eq!(write(&file, link(Reach::Memory), 4, &cells).unwrap().as_deref(), Some("another"));
        let found = Tuning::read(&file).unwrap();
        assert_eq!((found.machine, found.links), (Tuning::machine(), vec![link(Reach::Memory)]));
        assert_eq!(found.rules, rules((Reach::Memory, 4), &cells));
        // What names no machine was written for whoever uses it.
        fs::write(&file, theirs("").to_toml()).unwrap();
        assert_eq!(write(&file, link(Reach::Memory), 4, &cells).unwrap(), None);
        assert_eq!(Tuning::read(&file).unwrap().links.len(), 2);
        fs::remove_dir_all(folder).unwrap();
    }
}
