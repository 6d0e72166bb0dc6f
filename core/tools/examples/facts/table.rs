//! What the suite has found, for people.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::machine::Outcome;

/// Prints the steps, the goals and the figures in a file of `tests/gpu/run`; whether all is as it should be.
pub(crate) fn print(file: &str) -> Outcome<bool> {
    let found: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    for (list, columns) in [
        ("steps", &["step", "status", "seconds", "why"][..]),
        ("goals", &["goal", "status", "found", "wanted"]),
        ("figures", &["figure", "ranks", "bytes", "value", "unit"]),
    ] {
        let rows = found[list].as_array().ok_or_else(|| format!("no {list} in {file}"))?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(columns.iter().copied());
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        for row in rows {
            table.add_row(columns.iter().map(|column| cell(&row[*column])));
        }
        println!("{table}\n");
    }
    println!("{}", found["verdict"].as_str().unwrap_or("no verdict"));
    Ok(found["passed"] == Value::Bool(true))
}

/// Columns of a terminal: what is longer goes on in the next line.
const WIDTH: u16 = 140;

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(real) if number.is_f64() => format!("{real:.3}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}
