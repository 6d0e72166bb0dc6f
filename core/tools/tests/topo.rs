//! `ccl topo`.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

const EIGHT_GPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/figures/eight-gpus.xml");

fn output(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccl")).arg("topo").args(arguments).output().unwrap()
}

/// What it prints, if it succeeds.
fn printed(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(&[arguments, &["--json"]].concat())).unwrap()
}

#[test]
fn this_machine_is_shown() {
    let shown = printed(&[]);
    assert!(shown.starts_with("CPUs: ") && shown.contains(" X "), "{shown}");
    let value = json(&["--rings"]);
    assert_eq!(value["nodes"], 1);
    let ranks = value["ranks"].as_array().unwrap().len();
    assert_eq!(value["rings"][0]["order"].as_array().unwrap().len(), ranks);
}

#[test]
fn a_file_is_shown_as_a_matrix() {
    let shown = printed(&["--file", EIGHT_GPUS, "--rings"]);
    let row = shown.lines().find(|line| line.contains("GPU0") && line.contains(" X ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..4], ["GPU0", "X", "NVL", "240"]);
    assert_eq!(cells[16..20], ["PIX", "24", "PIX", "24"]);
    assert!(shown.contains("mlx5_3, 200 Gb/s") && shown.contains("0000:55:00.0, 24 GB/s upwards"), "{shown}");
    assert!(shown.contains("rings: 240 GB/s over 6 channels"), "{shown}");
    let value = json(&["--file", EIGHT_GPUS]);
    assert_eq!(value["matrix"].as_array().unwrap().len(), 16 * 15);
    assert_eq!(value["matrix"][0]["distance"], "NVL");
    assert!(value.get("rings").is_none());
}

#[test]
fn several_nodes_use_every_rail() {
    let value = json(&["--file", EIGHT_GPUS, "--nodes", "3", "--rings"]);
    for (channel, ring) in value["rings"].as_array().unwrap().iter().enumerate() {
        assert_eq!(ring["gb_per_s"], 24.0);
        let nics: Vec<_> = (0..3).map(|node| format!("{node}/NIC{channel}")).collect();
        assert_eq!(ring["nics"], serde_json::json!(nics));
        let mut order: Vec<u64> = serde_json::from_value(ring["order"].clone()).unwrap();
        order.sort_unstable();
        assert_eq!(order, (0..24).collect::<Vec<_>>());
    }
    assert_eq!(value["rings"].as_array().unwrap().len(), 8);
    assert_eq!(value["trees"].as_array().unwrap().len(), 8);
}

#[test]
fn xml_comes_out_as_it_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.xml");
    fs::write(&copy, printed(&["--file", EIGHT_GPUS, "--xml"])).unwrap();
    let digest = |file: &str| json(&["--file", file])["digest"].clone();
    assert_eq!(digest(copy.to_str().unwrap()), digest(EIGHT_GPUS));
}

/// The picture in the manual is the one that the tool draws: `CCL_REGENERATE=1` makes it anew.
#[test]
fn the_picture_in_the_manual_is_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("picture.svg");
    printed(&["--file", EIGHT_GPUS, "--svg", file.to_str().unwrap()]);
    let drawn = fs::read_to_string(file).unwrap();
    for part in ["GPU7", "rank 7", "mlx5_0", "NVSwitch", "NVLink", "PCIe switch", ">\n240\n<"] {
        assert!(drawn.contains(part), "{part}");
    }
    let kept = EIGHT_GPUS.replace(".xml", ".svg");
    if std::env::var_os("CCL_REGENERATE").is_some() {
        fs::write(&kept, &drawn).unwrap();
    }
    let is_same = fs::read_to_string(&kept).unwrap() == drawn;
    assert!(is_same, "draw it again with CCL_REGENERATE=1 cargo test -p ccl-tools --test topo");
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.xml");
    fs::write(&bad, "<system>\n<cpu numaid=\"one\"/></system>").unwrap();
    let bad = bad.to_str().unwrap();
    for (arguments, status, part) in [
        (&["--file", bad][..], 2, "bad.xml:2: <cpu>: expected a number for numaid, found `one`"),
        (&["--file", "nowhere.xml"], 3, "read the topology file nowhere.xml"),
        (&["--xml", "--json"], 2, "cannot be used with"),
        (&["--file", EIGHT_GPUS, "--nodes", "9", "--svg", "x.svg"], 2, "at most 8 nodes to draw, found 9"),
        (&["--file", EIGHT_GPUS, "--svg", "no/such/folder/x.svg"], 3, "write no/such/folder/x.svg"),
    ] {
        let output = output(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    assert!(printed(&["--help"]).contains("ccl topo --file machine.xml --rings"));
}
