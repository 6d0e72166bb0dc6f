//! What ccl's names are called by NCCL: strings, and the numbers of version 1.

use std::ffi::CStr;

/// A name of NCCL's, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word {
    pub(crate) text: &'static CStr,
    pub(crate) code: u8,
}

/// A collective or message. Where NCCL has no such function the name is in its spelling, and the number that of what it
/// would use instead.
pub(crate) fn function(name: &str) -> Word {
    let (text, code) = match name {
        "broadcast" => (c"Broadcast", BROADCAST),
        "reduce" => (c"Reduce", REDUCE),
        "all_gather" => (c"AllGather", ALL_GATHER),
        "all_gather_v" => (c"AllGatherV", ALL_GATHER),
        "reduce_scatter" => (c"ReduceScatter", REDUCE_SCATTER),
        "reduce_scatter_v" => (c"ReduceScatterV", REDUCE_SCATTER),
        "all_reduce" => (c"AllReduce", ALL_REDUCE),
        "barrier" => (c"Barrier", ALL_REDUCE),
        "send" => (c"Send", 6),
        "recv" => (c"Recv", 7),
        "all_to_all" => (c"AlltoAll", SEND_RECV),
        "all_to_all_v" => (c"AlltoAllV", SEND_RECV),
        "scatter" => (c"Scatter", SEND_RECV),
        "scatter_v" => (c"ScatterV", SEND_RECV),
        "gather" => (c"Gather", SEND_RECV),
        "gather_v" => (c"GatherV", SEND_RECV),
        _ => (c"Invalid", SEND_RECV),
    };
    Word { text, code }
}

/// A type of elements.
pub(crate) fn datatype(name: &str) -> Word {
    let (text, code) = match name {
        "int8" => (c"ncclInt8", 0),
        "uint8" => (c"ncclUint8", 1),
        "int32" => (c"ncclInt32", 2),
        "uint32" => (c"ncclUint32", 3),
        "int64" => (c"ncclInt64", 4),
        "uint64" => (c"ncclUint64", 5),
        "half" => (c"ncclFloat16", 6),
        "float" => (c"ncclFloat32", 7),
        "double" => (c"ncclFloat64", 8),
        "bfloat16" => (c"ncclBfloat16", 9),
        "f8e4m3" => (c"ncclFloat8e4m3", 10),
        "f8e5m2" => (c"ncclFloat8e5m2", 11),
        _ => (c"Unknown", 0),
    };
    Word { text, code }
}

/// The algorithm of a plan such as "all_reduce.ring". Those that NCCL does not have keep their name, in capitals; their
/// number is that of the ring, since profilers look numbers up in tables of a fixed length.
pub(crate) fn algorithm(plan: &str) -> Word {
    let (text, code) = match plan.rsplit('.').next().unwrap_or(plan) {
        "double_tree" => (c"TREE", 0),
        "ring" => (c"RING", RING),
        "pat" => (c"PAT", 6),
        "one_shot" => (c"ONE_SHOT", RING),
        "two_shot" => (c"TWO_SHOT", RING),
        "direct" => (c"DIRECT", RING),
        "dissemination" => (c"DISSEMINATION", RING),
        "binomial" => (c"BINOMIAL", RING),
        "recursive_doubling" => (c"RECURSIVE_DOUBLING", RING),
        "bruck" => (c"BRUCK", RING),
        "rabenseifner" => (c"RABENSEIFNER", RING),
        "one_shot_tree" => (c"ONE_SHOT_TREE", RING),
        "two_shot_tree" => (c"TWO_SHOT_TREE", RING),
        "direct_tree" => (c"DIRECT_TREE", RING),
        "two_level" => (c"TWO_LEVEL", RING),
        "two_level_halving" => (c"TWO_LEVEL_HALVING", RING),
        "swing" => (c"SWING", RING),
        _ => (c"OTHER", RING),
    };
    Word { text, code }
}

/// How data passes: what ccl does on a host, slots and credits, is what NCCL calls so.
pub(crate) const PROTOCOL: Word = Word { text: c"SIMPLE", code: 2 };

/// A reduce op, by number.
pub(crate) fn reduce_op(name: &str) -> u32 {
    match name {
        "prod" => 1,
        "max" => 2,
        "min" => 3,
        "avg" => 4,
        _ => 0,
    }
}

const BROADCAST: u8 = 0;
const REDUCE: u8 = 1;
const ALL_GATHER: u8 = 2;
const REDUCE_SCATTER: u8 = 3;
const ALL_REDUCE: u8 = 4;
const SEND_RECV: u8 = 5;
const RING: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_nccls_where_it_has_them() {
        assert_eq!(function("all_reduce"), Word { text: c"AllReduce", code: 4 });
        assert_eq!(function("recv"), Word { text: c"Recv", code: 7 });
        assert_eq!(function("what").text, c"Invalid");
        assert_eq!(datatype("float"), Word { text: c"ncclFloat32", code: 7 });
        assert_eq!(algorithm("all_reduce.ring"), Word { text: c"RING", code: 1 });
        assert_eq!(algorithm("all_reduce.double_tree"), Word { text: c"TREE", code: 0 });
        assert_eq!(algorithm("mine"), Word { text: c"OTHER", code: 1 });
        assert_eq!([reduce_op("sum"), reduce_op("avg")], [0, 4]);
    }
}
