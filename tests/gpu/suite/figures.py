"""What is timed, and the goals that times are held to."""

import json
import pathlib
import sys

from .checks import INTERPRETED
from .runner import Broken, Missing

MIB, GIB = 1 << 20, 1 << 30


def run(suite):
    suite.step("copies and launches", lambda: alone(suite), 40)
    suite.step("registers", lambda: registers(suite), 30)
    suite.step("cost of a step", lambda: decode(suite), 20)
    for n in (2,) if suite.dry else (2, 8):
        suite.step(f"{n} ranks, short calls", lambda n=n: short(suite, n), 30)
        suite.step(f"{n} ranks, bandwidth", lambda n=n: bandwidth(suite, n), 60)
    for n in (2,) if suite.dry else (2, 8):
        suite.step(f"{n} ranks, channels", lambda n=n: channels(suite, n), 40)
    suite.step("interpreter and special kernels", lambda: special(suite), 60)
    suite.step("NCCL", lambda: nccl(suite), 90)


def milliseconds(suite):
    return 2 if suite.dry else 50


def timing(suite):
    """How long a point of `ccl perf` is measured."""
    return ["--iters", "3", "-w", "1"] if suite.dry else ["-t", "0.05"]


def alone(suite):
    """The device's copy, one rank's all-reduce beside it, and launches."""
    sizes = "8,65536" if suite.dry else f"8,1024,{16 << 10},{256 << 10},{MIB},{16 * MIB},{256 * MIB},{GIB}"
    copies = {row["bytes"]: row for row in suite.fact("copy", bytes=sizes, ms=milliseconds(suite))}
    for size, row in copies.items():
        timed(suite, "the driver's copy", size, size / row["gb_per_s"] / 1e3, row["gb_per_s"])
    largest = max(copies)
    rows = suite.perf("all_reduce,all_gather", 1, ["-b", sizes, "--placement", "out", *timing(suite), "--check", "0"])
    for row in rows:
        timed(suite, f"{row['coll']} of one rank", row["bytes"], row["time_us"], row["algbw_gbps"])
    ours = next(row["algbw_gbps"] for row in rows if row["bytes"] == largest)
    suite.goal("local copy path", ours >= 0.9 * copies[largest]["gb_per_s"],
               f"{ours:.1f} of {copies[largest]['gb_per_s']:.1f} GB/s", "90 % of the device's copy")
    launch = suite.fact("launch", ms=milliseconds(suite))[-1]
    suite.figure("an empty kernel, one after another", launch["queued_us"], "µs")
    suite.figure("an empty kernel, waited for", launch["done_us"], "µs")


def timed(suite, name, size, time_us, gb_per_s):
    """What says more of one rank's call: its time, or the bytes that it moves."""
    value, unit = (round(time_us, 3), "µs") if size <= 1024 else (gb_per_s, "GB/s")
    suite.figure(name, value, unit, 1, size)


def registers(suite):
    rows = suite.fact("registers", threads=32 if suite.dry else 512)
    found = [row for row in rows if row["fact"] == "registers"]
    suite.facts["registers"] = found
    for start in ("ccl_interpret_", "ccl_group_", "ccl_one_shot_", "ccl_two_shot_"):
        for end in ("_simple", "_ll", "_ll128") if start == "ccl_interpret_" else ("",):
            those = [row["registers"] for row in found if row["kernel"].startswith(start) and row["kernel"].endswith(end)]
            if those:
                suite.figure(f"registers of {start.removeprefix('ccl_')}*{end}, at most", max(those), "")
    missing = next(row["missing"] for row in rows if row["fact"] == "kernels")
    if missing:
        raise Broken(f"no image has {len(missing)} kernels, such as {missing[0]}")
    return f"{len(found)} kernels"


def decode(suite):
    found = suite.fact("decode", threads=64 if suite.dry else 512, ms=milliseconds(suite))[-1]
    suite.figure("a step of the interpreter", found["ns_per_step"], "ns", 1)
    suite.figure("a call of the interpreter of few steps", found["few_us"], "µs", 1)


def short(suite, n):
    operations = "all_reduce,all_gather,reduce_scatter,broadcast,pingpong"
    sizes = ["-b", "8", "--placement", "out"]
    for row in suite.perf(operations, n, [*sizes, *timing(suite)]):
        suite.figure(row["coll"], row["time_us"], "µs", n, row["bytes"])
    for row in suite.perf(operations, n, [*sizes, "--graph", "8", *timing(suite)]):
        suite.figure(f"{row['coll']} in a graph", row["time_us"], "µs", n, row["bytes"])


def bandwidth(suite, n):
    sizes = ["-b", "1K", "-e", "4K" if suite.dry else "1G", "-f", "4" if n == 2 else "16", "--placement", "out"]
    operations = "all_reduce,all_gather,sendrecv" if n == 2 else "all_reduce"
    # What is long takes longer to look at than to move, and was looked at by the steps before.
    for row in suite.perf(operations, n, [*sizes, *timing(suite), "--check", "1" if suite.dry else "0"]):
        suite.figure(row["coll"], row["busbw_gbps"], "GB/s", n, row["bytes"])


def channels(suite, n, env=None, where=""):
    """How many channels calls have where nobody says, and what more and fewer are worth."""
    sizes = "1K,4K" if suite.dry else "64K,1M,64M"
    known = suite.fact("channels", env, ranks=n)
    suite.facts[f"channels of {n} ranks{where}"] = known
    chosen = max(row["channels"] for row in known if row["fact"] == "channels" and row["coll"] == "all_reduce")
    suite.figure(f"channels of long all-reduces by default{where}", chosen, "", n)
    taken = next(row["device_memory"] for row in known if row["fact"] == "slots")
    suite.figure(f"device memory of a rank by default{where}", round(taken / MIB, 1), "MiB", n)
    words = ["-b", sizes, "--placement", "out", *timing(suite), "--check", "0"]
    most = suite.most_channels(1 if where else n)
    best = {}
    for count in [None, *(1 << power for power in range(6) if 1 << power <= most)]:
        more = {} if count is None else {"CCL_MAX_NCHANNELS": str(count)}
        name = "by default" if count is None else f"at most {count} channels"
        for row in suite.perf("all_reduce,all_gather,sendrecv", n, words, env={**(env or {}), **more}):
            suite.figure(f"{row['coll']}, {name}{where}", row["busbw_gbps"], "GB/s", n, row["bytes"])
            if row["coll"] == "allreduce":
                best.setdefault(row["bytes"], []).append((row["busbw_gbps"], count))
    longest = best[max(best)]
    fastest, count = max(longest[1:])
    suite.goal(f"channels of {n} ranks{where}, {max(best)} B", longest[0][0] >= 0.9 * fastest,
               f"{longest[0][0]:.1f} GB/s by default, {fastest:.1f} with {count}", "the default within 10 % of the best")
    return f"{chosen} by default, fastest with {count}"


def special(suite):
    """Both all-reduces with kernels of their own, against the same plans interpreted."""
    sizes = [8, 1024] if suite.dry else [8, 1 << 14, MIB, 16 * MIB, 64 * MIB]
    small = {"threads": 32, "blocks": 2} if suite.dry else {}
    for n in (2,) if suite.dry else (2, 8):
        known = suite.fact("channels", ranks=n, bytes=",".join(map(str, sizes)))
        # Where calls take one of them by themselves.
        by_one_shot = {row["bytes"] for row in known if row.get("protocol") == "special"}
        by_two_shot = {size for size in sizes if 0 < known[-1]["two_shot_from"] <= size}
        kept = {"one_shot": by_one_shot, "two_shot": by_one_shot | by_two_shot}
        own = suite.fact("special", ranks=n, bytes=",".join(map(str, sizes)), ms=milliseconds(suite), **small)
        for kernel in ("one_shot", "two_shot"):
            rows = [row for row in own if row["kernel"] == kernel]
            # Both in graphs: what launches cost is no kernel's.
            words = ["-b", ",".join(str(row["bytes"]) for row in rows), "--placement", "out", "--graph", "16", *timing(suite), "--check", "0"]
            interpreted = suite.perf("all_reduce", n, words, env={**INTERPRETED, "CCL_ALGO": f"all_reduce:{kernel}"})
            for ours, theirs in zip(interpreted, rows, strict=True):
                times = ours["time_us"], theirs["time_us"]
                compare(suite, kernel, n, times, theirs["bytes"], theirs["bytes"] in kept[kernel])
        in_calls(suite, n)


def in_calls(suite, n):
    """Whole calls whose kernels interpret nothing, and the same interpreted in a graph: without one they are among the
    comparisons."""
    for kernel, sizes, env, memory in (("one_shot", "8,1K" if suite.dry else "8,16K,64K,256K", {}, "device"),
                                       ("two_shot", "1K" if suite.dry else "64K,1M,16M,64M", {"CCL_CUDA_TWO_SHOT": "1"}, "window")):
        words = ["-b", sizes, "--placement", "out", *timing(suite), "--check", "0"]
        forced = {"CCL_ALGO": f"all_reduce:{kernel}"}
        ways = [("special", ["--graph", "8"], env), ("interpreted", ["--graph", "8"], INTERPRETED)]
        # What more ranks of one process launch one by one may stand still.
        for kind, more, own in [("special", [], env), *ways] if n <= 2 else ways:
            how = f"{kernel}, {kind}, in calls{' in a graph' if more else ''}"
            for row in suite.perf("all_reduce", n, [*words, *more], env={**own, **forced}, memory=memory):
                suite.figure(how, row["time_us"], "µs", n, row["bytes"])


def compare(suite, kernel, n, times_us, size, is_kept):
    interpreted_us, special_us = times_us
    suite.figure(f"{kernel}, interpreted", interpreted_us, "µs", n, size)
    suite.figure(f"{kernel}, special", special_us, "µs", n, size)
    found = f"{interpreted_us:.2f} and {special_us:.2f} µs{', which is kept' if is_kept else ''}"
    if size == 8:
        suite.goal(f"{kernel}, {n} ranks, 8 B", is_kept or interpreted_us <= special_us + 1, found, "within 1 µs, or keep the special kernel")
    if size >= MIB:
        suite.goal(f"{kernel}, {n} ranks, {size} B", is_kept or interpreted_us <= 1.05 * special_us, found,
                   "within 5 %, or keep the special kernel")


def nccl(suite):
    program = pathlib.Path(__file__).with_name("nccl.py")
    if suite.dry:
        # Everything up to the first call that needs a device.
        found = suite.call([sys.executable, program, "--look"])
        raise Missing(f"a dry run has no device for it; {json.loads(found)['found']}")
    found = json.loads(suite.call([sys.executable, program, "--look"]))
    if not found["library"]:
        raise Missing(found["found"])
    many = found["version"] >= 23000
    rows = []
    for n in (1, 2, 8) if many else (1,):
        rows += suite.lines([sys.executable, program, "--ranks", n], env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    suite.facts["nccl"] = {**found, "rows": rows}
    for row in rows:
        value, unit = (row["time_us"], "µs") if row["bytes"] <= 1024 else (row["busbw_gbps"], "GB/s")
        suite.figure(f"NCCL's {row['coll']}", value, unit, row["ranks"], row["bytes"])
    if not all(row["ok"] for row in rows):
        raise Broken("NCCL's results are wrong, so this suite calls it wrongly")
    return f"version {found['version']}, " + ("several ranks on the device" if many else "its calls of one rank only")
