//! Names as the tools for PyTorch's traces expect them. They tell communication by `ncclKernel` alone.

use ccl_plugin::profiler::Call;

/// What a call or its work is called: `ccl:all_reduce`, `ncclKernel_AllReduce_RING_SLOTS_Sum_float`.
pub(crate) fn of_call(call: &Call) -> String {
    match call.algorithm {
        Some(algorithm) => {
            let (_, algorithm) = algorithm.rsplit_once('.').unwrap_or(("", algorithm));
            kernel([Some(algorithm), call.protocol], call.func, call.op, call.dtype)
        }
        None => format!("ccl:{}", call.func),
    }
}

/// A collective as PyTorch's traces name it.
pub(crate) fn collective(func: &str) -> &str {
    match func {
        "all_reduce" => "allreduce",
        "all_gather" | "all_gather_v" => "allgather",
        "all_to_all" => "alltoall",
        "all_to_all_v" => "all_to_allv",
        other => other.trim_end_matches("_v"),
    }
}

/// An element type as PyTorch's traces name it.
pub(crate) fn scalar_type(dtype: &str) -> &str {
    match dtype {
        "int8" => "Char",
        "uint8" => "Byte",
        "int32" => "Int",
        "uint32" => "UInt32",
        "int64" => "Long",
        "uint64" => "UInt64",
        "half" => "Half",
        "float" => "Float",
        "double" => "Double",
        "bfloat16" => "BFloat16",
        "f8e4m3" => "Float8_e4m3fn",
        "f8e5m2" => "Float8_e5m2",
        other => other,
    }
}

/// Elements that go into a call on one rank, and come out of it.
pub(crate) fn elements(func: &str, count: u64, nranks: u32) -> (u64, u64) {
    let (own, all) = (count, count * u64::from(nranks));
    match func {
        "all_gather" | "gather" => (own, all),
        "reduce_scatter" | "scatter" => (all, own),
        "all_to_all" => (all, all),
        _ => (own, own),
    }
}

fn kernel(ways: [Option<&str>; 2], func: &str, op: Option<&str>, dtype: &str) -> String {
    let mut name = format!("ncclKernel_{}", camel(func));
    let ways = ways.into_iter().flatten().map(str::to_ascii_uppercase);
    for part in ways.chain(op.map(camel)).chain([dtype.to_owned()]) {
        name += "_";
        name += &plain(&part);
    }
    name
}

/// `all_reduce` as `AllReduce`.
fn camel(text: &str) -> String {
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    text.split('_').filter_map(capital).collect()
}

/// Letters and digits; whoever plans from a file may choose other names.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_named_as_tools_know_it() {
        let ways = [Some("two_shot"), Some("slots")];
        let name = kernel(ways, "all_reduce", Some("sum"), "float");
        assert_eq!(name, "ncclKernel_AllReduce_TWO_SHOT_SLOTS_Sum_float");
        let own = kernel([Some("my ring"), None], "all_gather_v", None, "int8");
        assert_eq!(own, "ncclKernel_AllGatherV_MY_RING_int8");
        assert_eq!(
            (collective("reduce_scatter_v"), collective("all_to_all")),
            ("reduce_scatter", "alltoall")
        );
    }

    #[test]
    fn elements_are_counted_on_both_sides() {
        let of = |func| elements(func, 5, 3);
        assert_eq!([of("all_reduce"), of("all_gather"), of("reduce_scatter")], [(5, 5), (5, 15), (15, 5)]);
    }
}
