//! The names of kernels: Rust asks for those that `variants.h` lists, and for no others.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "only its list of dtypes is looked at")]
#[path = "../build/compile.rs"]
mod compile;
#[allow(dead_code, reason = "compile.rs needs it")]
#[path = "../build/toolchain.rs"]
mod toolchain;

use std::collections::BTreeSet;

use ccl_kernels::image::SOURCES;
use ccl_kernels::shape::{self, Protocol};
use ccl_kernels::special::Special;
use ccl_plan::{Collective, Dtype, ReduceOp};

#[test]
fn the_interpreters_names_agree() {
    let text = variants();
    let protocols = arguments(macro_text(&text, "CCL_EACH_PROTOCOL"), "X(", 2);
    let ops = arguments(macro_text(&text, "CCL_EACH_OP"), "CCL_EACH_PROTOCOL(", 2);
    let each = macro_text(&text, "CCL_EACH_DTYPE");
    let mut listed = BTreeSet::new();
    for protocol in &protocols {
        let named = |dtype: &str, op: &str| format!("ccl_interpret_{dtype}_{op}_{protocol}");
        for dtype in arguments(each, "CCL_EACH_OP(", 1) {
            listed.extend(ops.iter().map(|op| named(&dtype, op)));
        }
        let moved = arguments(each, "CCL_EACH_PROTOCOL(", 1);
        listed
            .extend(moved.iter().zip(arguments(each, "CCL_EACH_PROTOCOL(", 2)).map(|(d, op)| named(d, &op)));
    }
    let mut asked = BTreeSet::new();
    for (collective, dtype, op, protocol) in every_call() {
        asked.insert(shape::kernel_name(collective, dtype, op, protocol));
    }
    assert_eq!(asked, listed);
    assert_eq!(listed.len(), (1 + 12 * 4) * 3);
}

#[test]
fn the_names_of_special_kernels_agree() {
    let text = variants();
    let ops = arguments(macro_text(&text, "CCL_SPECIAL_EACH_OP"), "X(", 2);
    let dtypes = arguments(macro_text(&text, "CCL_SPECIAL_EACH_DTYPE"), "CCL_SPECIAL_EACH_OP(", 2);
    for special in Special::ALL {
        let asked: BTreeSet<String> = Dtype::ALL
            .into_iter()
            .flat_map(|dtype| ReduceOp::ALL.map(|op| special.kernel_name(dtype, op)))
            .collect();
        let stem = format!("ccl_{}", special.algorithm().name());
        let listed: BTreeSet<String> = dtypes
            .iter()
            .flat_map(|dtype| ops.iter().map(move |op| format!("{dtype}_{op}")))
            .map(|ending| format!("{stem}_{ending}"))
            .collect();
        assert_eq!(asked, listed);
        let list = format!(", {})", special.algorithm().name());
        let begins = |line: &str| line.starts_with("CCL_SPECIAL_VARIANTS(") && line.ends_with(&list);
        let launched = SOURCES.iter().any(|(_, text)| text.lines().any(begins));
        assert!(launched, "no source begins {stem}_...");
    }
}

#[test]
fn dtypes_have_the_discriminants_of_the_plan() {
    let text = variants();
    let table = macro_text(&text, "CCL_DTYPES");
    let listed: Vec<(String, String)> =
        arguments(table, "X(", 0).into_iter().zip(arguments(table, "X(", 1)).collect();
    let known = Dtype::ALL.map(|dtype| (shape::dtype_name(dtype).to_owned(), (dtype as u32).to_string()));
    assert_eq!(listed, known);
    let mut built: Vec<&str> =
        compile::EVERY.iter().copied().filter(|dtype| *dtype != compile::BYTES).collect();
    built.sort_unstable();
    let mut names = Dtype::ALL.map(shape::dtype_name);
    names.sort_unstable();
    assert_eq!(built, names);
    assert!(compile::COMMON.iter().all(|dtype| compile::EVERY.contains(dtype)));
}

fn every_call() -> impl Iterator<Item = (Collective, Dtype, ReduceOp, Protocol)> {
    Collective::ALL.into_iter().flat_map(|collective| {
        Dtype::ALL.into_iter().flat_map(move |dtype| {
            ReduceOp::ALL
                .into_iter()
                .flat_map(move |op| Protocol::ALL.map(|protocol| (collective, dtype, op, protocol)))
        })
    })
}

fn variants() -> String {
    let (_, text) = SOURCES.iter().find(|(name, _)| *name == "variants.h").unwrap();
    text.replace("\\\n", " ")
}

/// What a macro stands for, once its lines are joined.
fn macro_text<'a>(text: &'a str, name: &str) -> &'a str {
    let define = format!("#define {name}(");
    let line = text.lines().find(|line| line.starts_with(&define)).unwrap_or_else(|| panic!("no {name}"));
    line[define.len()..].split_once(')').unwrap().1
}

/// Argument number `index` of every use of a macro, in order.
fn arguments(text: &str, macro_use: &str, index: usize) -> Vec<String> {
    let uses = text.split(macro_use).skip(1).map(|rest| rest.split_once(')').unwrap().0);
    uses.map(|inner| inner.split(',').nth(index).unwrap().trim().to_owned()).collect()
}
