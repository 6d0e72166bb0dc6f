//! What is compiled for one kernel where no image holds it: a source, the headers it needs, and options. The sources
//! include nothing but each other, so a compiler that takes headers by name needs no folder.

use ccl_plan::{Dtype, ReduceOp};

use crate::image::{SOURCES, stem_of};
use crate::shape::{Protocol, dtype_name, fold_name};

/// One kernel, as a compiler takes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The path of the source, as messages of the compiler name it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// All that it includes, as (name as it stands in `#include`, text).
    pub headers: Vec<(&'static str, &'static str)>,
    /// Options beside the target's.
    pub options: Vec<String>,
}

impl Unit {
    /// What holds this kernel alone, a name such as `ccl_interpret_f32_sum_ll`; nothing if there is no such kernel.
    pub fn of(kernel: &str) -> Option<Unit> {
        let (stem, variant) = stem_of(kernel)?;
        let words: Vec<&str> = variant.split('_').collect();
        let is_known = match (stem, &words[..]) {
            ("interpret", ["bytes", "copy", protocol]) => is_protocol(protocol),
            ("interpret", [dtype, op, protocol]) => is_fold(dtype, op) && is_protocol(protocol),
            ("group", words) => words == ["bytes", "copy"],
            (_, [dtype, op]) => stem != "interpret" && is_fold(dtype, op),
            _ => false,
        };
        let file = format!("{stem}.cu");
        let is_it = |path: &str| path.rsplit('/').next() == Some(&file);
        let (name, text) = *SOURCES.iter().find(|(path, _)| is_known && is_it(path))?;
        let named = ["DTYPE", "OP", "PROTOCOL"].into_iter().zip(words);
        let defines = named.map(|(what, word)| format!("-DCCL_ONLY_{what}={word}"));
        let options = STANDARD.iter().map(|option| (*option).to_owned()).chain(defines).collect();
        Some(Unit { name, text, headers: headers(name, text), options })
    }
}

fn is_fold(dtype: &str, op: &str) -> bool {
    Dtype::ALL.iter().any(|known| dtype_name(*known) == dtype)
        && FOLDS.iter().any(|fold| fold_name(*fold) == op)
}

fn is_protocol(word: &str) -> bool {
    Protocol::ALL.iter().any(|protocol| protocol.name() == word)
}

/// All that a source includes, also by what it includes, each name once.
fn headers(path: &'static str, text: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut left = vec![(path, text)];
    while let Some((path, text)) = left.pop() {
        for written in text.lines().filter_map(included) {
            let Some((path, text)) = resolve(path, written) else { continue };
            if found.iter().all(|(known, _)| *known != written) {
                found.push((written, text));
                left.push((path, text));
            }
        }
    }
    found.sort_unstable();
    found
}

/// The name in a line that includes a file beside others.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

/// The file that a name stands for: beside the file that includes it, else in the folder of all.
fn resolve(from: &str, written: &str) -> Option<(&'static str, &'static str)> {
    let beside = from.rsplit_once('/').map(|(folder, _)| format!("{folder}/{written}"));
    let find = |path: &str| SOURCES.iter().find(|(known, _)| *known == path).copied();
    beside.and_then(|path| find(&path)).or_else(|| find(written))
}

const STANDARD: [&str; 1] = ["--std=c++17"];
const FOLDS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ccl_plan::Collective;

    use super::*;
    use crate::shape::{GROUP_KERNEL, kernel_name};
    use crate::special::Special;

    fn all() -> Vec<String> {
        let folds = Dtype::ALL.iter().flat_map(|dtype| FOLDS.map(|op| (*dtype, op)));
        let folded = folds.clone().flat_map(|(dtype, op)| {
            Protocol::ALL.map(|protocol| kernel_name(Collective::AllReduce, dtype, op, protocol))
        });
        let moved = Protocol::ALL
            .map(|protocol| kernel_name(Collective::Broadcast, Dtype::F32, ReduceOp::Sum, protocol));
        let special =
            folds.flat_map(|(dtype, op)| Special::ALL.map(|special| special.kernel_name(dtype, op)));
        folded.chain(moved).chain(special).chain([GROUP_KERNEL.to_owned()]).collect()
    }

    #[test]
    fn every_kernel_has_a_unit_of_its_own() {
        let units: Vec<Unit> = all().iter().map(|kernel| Unit::of(kernel).expect(kernel)).collect();
        for (index, unit) in units.iter().enumerate() {
            let same =
                units.iter().position(|other| (other.name, &other.options) == (unit.name, &unit.options));
            assert_eq!(same, Some(index), "{unit:?}");
        }
        let one = Unit::of("ccl_interpret_f32_sum_ll").unwrap();
        let options = ["--std=c++17", "-DCCL_ONLY_DTYPE=f32", "-DCCL_ONLY_OP=sum", "-DCCL_ONLY_PROTOCOL=ll"];
        assert_eq!((one.name, one.options), ("interpret.cu", options.map(str::to_owned).to_vec()));
        let two = Unit::of("ccl_two_shot_bf16_max").unwrap();
        assert_eq!(two.options[1..], ["-DCCL_ONLY_DTYPE=bf16", "-DCCL_ONLY_OP=max"].map(str::to_owned));
    }

    #[test]
    fn what_is_no_kernel_has_none() {
        for name in [
            "",
            "ccl_interpret",
            "ccl_interpret_f32_sum",
            "ccl_interpret_f32_sum_ll_x",
            "ccl_interpret_f33_sum_ll",
            "ccl_interpret_bytes_sum_ll",
            "ccl_interpret_f32_copy_ll",
            "ccl_interpret_f32_sum_-O0",
            "ccl_one_shot_bytes_copy",
            "ccl_one_shot_f32_sum_ll",
            "ccl_group_f32_sum",
            "ccl_group_bytes_copy_ll",
            "ccl_other_f32_sum",
        ] {
            assert_eq!(Unit::of(name), None, "{name}");
        }
    }

    #[test]
    fn all_that_a_source_includes_is_there_under_one_name() {
        let mut names = BTreeMap::new();
        for kernel in all() {
            let unit = Unit::of(&kernel).unwrap();
            let texts = unit.headers.iter().map(|(_, text)| *text).chain([unit.text]);
            for written in texts.flat_map(|text| text.lines().filter_map(included)) {
                assert!(unit.headers.iter().any(|(name, _)| *name == written), "{kernel}: no {written}");
            }
            for (written, text) in unit.headers {
                // One text under two names would be read twice, one name for two texts once too seldom.
                assert_eq!(*names.entry(written).or_insert(text), text, "{written}");
                assert_eq!(names.values().filter(|known| **known == text).count(), 1, "{written}");
            }
        }
        assert!(names.contains_key("ccl_device.h") && names.contains_key("special.h"), "{:?}", names.keys());
    }
}
