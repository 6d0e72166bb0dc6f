//! Golden texts: the programs of every algorithm, role by role.
//!
//! After an intended change: `CCL_BLESS=1 cargo test -p ccl-tests --test plan golden`, then read
//! the difference.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use ccl_plan::verify::plans;
use ccl_plan::{Place, Plan};

#[test]
fn texts_are_as_reviewed() {
    let bless = std::env::var_os("CCL_BLESS").is_some();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("plan/golden");
    let mut different = Vec::new();
    for plan in plans(8..=8) {
        let name = format!("{}.{}.txt", plan.collective(), plan.algorithm());
        let file = folder.join(&name);
        let text =
            [1, 3, 8].map(|n| roles(&Plan::new(plan.collective(), plan.algorithm(), n).unwrap())).concat();
        if bless {
            fs::write(&file, &text).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != text {
            different.push(format!("{name} should be\n{text}"));
        }
    }
    assert!(different.is_empty(), "set CCL_BLESS=1 to accept:\n{}", different.join("\n"));
}

#[test]
fn there_is_no_stray_golden_text() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("plan/golden");
    let known: Vec<String> =
        plans(8..=8).map(|plan| format!("{}.{}.txt", plan.collective(), plan.algorithm())).collect();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(&name), "{name} belongs to no algorithm");
    }
}

/// Every program of a plan with root 0, once, under the places that run it.
fn roles(plan: &Plan) -> String {
    let cast = plan.cast(Place(0)).expect("the plan is sound");
    let mut text = String::new();
    for (index, program) in cast.programs.iter().enumerate() {
        let places = (0..plan.n()).filter(|place| usize::from(cast.of_place[*place as usize]) == index);
        let places: Vec<String> = places.map(|place| place.to_string()).collect();
        let bytes = program.to_bytes().len();
        let _ = writeln!(text, "# n = {}, root 0, place {}: {bytes} bytes", plan.n(), places.join(" "));
        let _ = writeln!(text, "{}", **program);
    }
    text
}
