//! The layout of the workspace: the one table the other checks read.

/// One crate of the layout.
pub(crate) struct Crate {
    /// Its package name.
    pub name: &'static str,
    /// Its folder, relative to the root.
    pub folder: &'static str,
    /// Target of lines of code without tests, comments and blank lines; half as many again is the ceiling.
    pub lines: usize,
    /// Our crates that it may depend on.
    pub uses: &'static [&'static str],
    /// Where `unsafe` may stand: beginnings of paths inside the folder.
    pub unsafe_in: &'static [&'static str],
    /// Whether its root must say `#![forbid(unsafe_code)]`.
    pub forbids_unsafe: bool,
}

/// Every crate the workspace has or will have. A crate that is not here may not be added.
pub(crate) const CRATES: &[Crate] = &[
    // 7,000 before one rank was verified for all, and there were Swing and nodes of different sizes.
    // 7,300 before formulas of cost knew of nodes, 7,800 before they knew of sockets between ranks that share cores.
    pure("ccl-plan", "core/plan", 8_500, &[]),
    // Apart from what it judges.
    pure("ccl-reference", "core/reference", 700, &["ccl-plan"]),
    // 1,800 before ranks shared the cores of a host, and that was calibrated.
    pure("ccl-sim", "core/sim", 2_200, &["ccl-plan"]),
    // 1,500 before graphs kept objects, and there were multicast and NVML.
    Crate {
        name: "ccl-cuda",
        folder: "core/cuda",
        lines: 2_000,
        uses: &[],
        // The example hands the driver what it asks for.
        unsafe_in: &["src", "examples/contract.rs"],
        forbids_unsafe: false,
    },
    Crate {
        name: "ccl",
        folder: "core/runtime",
        // 12,000 before communicators were split and machines detected, 12,500 before ranks met at several roots, 14,000
        // before infos went out of band, 14,300 before a slot served several receivers, 14,600 before profilers, 15,600 before the flight recorder,
        // 15,800 before tuners, 16,100 before short steps, 16,300 before ranks worked on devices, 19,000 before devices had windows, 19,500 before they had
        // multicast memory, 20,000 before windows lay in pieces and peers heard of every end.
        lines: 22_000,
        uses: &["ccl-plan", "ccl-reference", "ccl-plugin-host", "ccl-cuda", "ccl-kernels", "ccl-net-socket"],
        unsafe_in: &[
            // Callers give memory by address.
            "src/comm/device.rs",
            "src/element.rs",
            "src/memory",
            "src/transport/copy.rs",
            "src/transport/edge.rs",
            "src/transport/net",
            "src/transport/shm",
            "src/exec",
        ],
        forbids_unsafe: false,
    },
    boundary("ccl-capi", "core/capi", 1_200, &["ccl"]),
    boundary("ccl-nccl", "core/nccl", 1_500, &["ccl"]),
    boundary("ccl-python", "core/python", 1_500, &["ccl"]),
    // 2,500 before `perf` had workloads and overlap, `plan` memory, and there were `topo`, `sim` and `tune`; 3,800
    // before `sim` was compared with what `tune` measures; 4,000 before `plugin` listed and checked plugins, 4,300 before `trace`,
    // 5,100 before `perf` made calls on device memory.
    Crate {
        name: "ccl-tools",
        folder: "core/tools",
        lines: 5_400,
        uses: &["ccl", "ccl-cuda", "ccl-sim", "ccl-plugin-check"],
        // Calls on device memory take addresses, and so do kernels.
        unsafe_in: &["src/perf/device.rs", "examples/facts"],
        forbids_unsafe: false,
    },
    // 1,500 before profilers.
    boundary("ccl-plugin", "plugins/abi", 2_000, &[]),
    // 2,000 before there were profilers, tuners and env plugins.
    boundary("ccl-plugin-check", "plugins/check", 2_700, &["ccl-plugin", "ccl-plugin-host"]),
    // 1,500 before profilers made for NCCL, tuners and env plugins.
    boundary("ccl-plugin-host", "plugins/host", 2_200, &["ccl-plugin", "ccl-plugin-nccl"]),
    // 2,000 before there were profilers, tuners and env plugins.
    boundary("ccl-plugin-nccl", "plugins/nccl", 3_200, &["ccl-plugin"]),
    Crate {
        name: "ccl-net-socket",
        folder: "net-socket",
        lines: 1_600,
        uses: &["ccl-plugin"],
        // Messages lie in memory that the host lends by address.
        unsafe_in: &["src/recv.rs", "src/send.rs", "src/staging.rs", "src/stream.rs"],
        forbids_unsafe: false,
    },
    safe("ccl-net-socket-plugin", "net-socket/plugin", 10, &["ccl-plugin", "ccl-net-socket"]),
    Crate {
        name: "ccl-net-example",
        folder: "plugins/examples/rust-net",
        lines: 250,
        uses: &["ccl-plugin"],
        // The one copy, from the sender's memory to the receiver's.
        unsafe_in: &["src/link.rs"],
        forbids_unsafe: false,
    },
    safe("ccl-net-ib", "net-ib", 3_500, &["ccl-plugin"]),
    safe("ccl-profiler-example", "profiler-example", 600, &["ccl-plugin"]),
    boundary("ccl-kernels", "kernels", 5_300, &["ccl-plan", "ccl-cuda"]),
    // 700 before stores were delayed and warps met.
    boundary("ccl-kernels-emulator", "kernels/emulator", 1_100, &["ccl-plan"]),
    // 1,200 before every call of the driver was there.
    boundary("ccl-fake-driver", "tests/fake-driver", 1_900, &["ccl-kernels-emulator"]),
];

/// Pairs of crates where the tests of the first, and nothing else of it, use the second.
pub(crate) const TESTED_WITH: &[(&str, &str)] = &[
    ("ccl-net-socket", "ccl-plugin-host"),
    ("ccl-plugin-host", "ccl-net-socket"),
    ("ccl-plugin-check", "ccl-net-socket"),
    ("ccl-kernels-emulator", "ccl"),
    ("ccl-kernels-emulator", "ccl-kernels"),
    ("ccl-cuda", "ccl-fake-driver"),
    ("ccl-tools", "ccl-kernels"),
    ("ccl-tools", "ccl-plan"),
];

/// The package that holds the test tiers; it may depend on everything.
pub(crate) const TESTS: &str = "ccl-tests";

/// The row of the crate named `name`.
pub(crate) fn row(name: &str) -> Option<&'static Crate> {
    CRATES.iter().find(|row| row.name == name)
}

/// The row of the crate that the file at `path` belongs to: of the innermost folder, if several hold it.
pub(crate) fn owner(path: &std::path::Path) -> Option<&'static Crate> {
    CRATES.iter().filter(|row| path.starts_with(row.folder)).max_by_key(|row| row.folder.len())
}

/// A crate that forbids `unsafe` altogether.
const fn pure(
    name: &'static str,
    folder: &'static str,
    lines: usize,
    uses: &'static [&'static str],
) -> Crate {
    Crate { name, folder, lines, uses, unsafe_in: &[], forbids_unsafe: true }
}

/// A crate that has no reason for `unsafe`.
const fn safe(
    name: &'static str,
    folder: &'static str,
    lines: usize,
    uses: &'static [&'static str],
) -> Crate {
    Crate { name, folder, lines, uses, unsafe_in: &[], forbids_unsafe: false }
}

/// A crate that exists because of `unsafe`: a C boundary, a driver, a loader.
const fn boundary(
    name: &'static str,
    folder: &'static str,
    lines: usize,
    uses: &'static [&'static str],
) -> Crate {
    Crate { name, folder, lines, uses, unsafe_in: &["src"], forbids_unsafe: false }
}
