//! What a device does apart from calls: copies, launches, registers, the cost of a step, special kernels, replays, chains of calls,
//! aborts; and how several devices reach each other.
//!
//!     facts copy|launch|registers|decode|special|replay|chain|abort|devices|ways|channels [NAME=VALUE ...]
//!     facts compile into=FOLDER [arch=90] [jobs=16] [dtypes=f32,bf16]
//!     facts table FILE
//!
//! The first prints a line of JSON for each figure, and fails if a result was wrong or a limit was passed; the driver and
//! the kernels are those of `CCL_CUDA_LIBRARY` and `CCL_CUDA_IMAGE`. The second compiles the kernels whose sources it
//! carries, with the machine's nvcc. The third prints what `tests/gpu/run`, which calls all of them, has found.

#![allow(unsafe_code)]

mod calls;
#[path = "../../../../kernels/build/compile.rs"]
#[allow(dead_code, reason = "the build of the kernels uses the rest")]
mod compile;
mod images;
mod kernels;
mod machine;
mod special;
mod table;
#[path = "../../../../kernels/build/toolchain.rs"]
#[allow(dead_code, reason = "the build of the kernels uses the rest")]
mod toolchain;
mod ways;

use std::process::ExitCode;

use crate::machine::{Machine, Options, Outcome};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    if name == "table" {
        return status(
            "table",
            words.next().ok_or("expected a file".into()).and_then(|file| table::print(&file)),
        );
    }
    status(&name, Options::of(words).and_then(|options| fact(&name, &options)))
}

fn status(name: &str, outcome: Outcome<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("facts {name}: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints the figures of one kind; whether all results were right.
fn fact(name: &str, options: &Options) -> Outcome<bool> {
    if name == "compile" {
        return images::compile(options);
    }
    let machine = Machine::new()?;
    match name {
        "copy" => kernels::copy(&machine, options),
        "launch" => kernels::launch(&machine, options),
        "registers" => kernels::registers(&machine, options),
        "decode" => kernels::decode(&machine, options),
        "special" => special::measure(&machine, options),
        "replay" => calls::replay(&machine, options),
        "chain" => calls::chain(&machine, options),
        "abort" => calls::abort(&machine, options),
        "devices" => ways::devices(&machine),
        "ways" => ways::ways(&machine, options),
        "channels" => ways::channels(&machine, options),
        other => Err(format!(
            "expected copy, launch, registers, decode, special, replay, chain, abort, devices, ways, channels, compile \
             or table, found `{other}`"
        )
        .into()),
    }
}
