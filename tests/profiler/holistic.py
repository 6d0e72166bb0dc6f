#!/usr/bin/env python3
"""Compares what HolisticTraceAnalysis says of traces with their events.

    python tests/profiler/holistic.py FOLDER

FOLDER has a trace of each rank. Into a copy of them goes a kernel that computes during the first half of each
communication, as a device would, so that there is something to overlap. Prints a line of JSON: for each rank the time of
each kernel, of all communication, and the share of it that is overlapped, as the events say ("ours") and as
HolisticTraceAnalysis does ("theirs"). Whoever calls compares them.
"""

import contextlib
import json
import pathlib
import sys
import tempfile

from hta.trace_analysis import TraceAnalysis


def union_us(spans):
    """Microseconds that spans (start, end) last together."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def with_computation(trace):
    """The spans of communication and computation in a trace; the latter are added to it."""
    work = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    communication = [(event["ts"], event["ts"] + event["dur"]) for event in work]
    computation = []
    for start, end in communication:
        computation.append((start, (start + end) / 2))
        trace["traceEvents"].append({
            "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start, "dur": (end - start) / 2,
            "args": {"stream": 7}})
    return work, communication, computation


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ranks = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in pathlib.Path(sys.argv[1]).glob("*.json"):
            trace = json.loads(file.read_text())
            ranks[trace["distributedInfo"]["rank"]] = with_computation(trace)
            # With spaces: it looks for the rank as text.
            (pathlib.Path(folder) / file.name).write_text(json.dumps(trace))
        # It speaks on standard output.
        with contextlib.redirect_stdout(sys.stderr):
            analysis = TraceAnalysis(trace_dir=folder)
            overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
            _, kernels = analysis.get_gpu_kernel_breakdown(
                visualize=False, duration_ratio=1.1, num_kernels=1000, include_memory_kernels=False)
            times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    found = []
    for rank, (work, communication, computation) in sorted(ranks.items()):
        sums = {}
        for event in work:
            sums[event["name"]] = sums.get(event["name"], 0.0) + event["dur"]
        theirs = kernels[(kernels["rank"] == rank) & (kernels["kernel_type"] == "COMMUNICATION")]
        theirs = dict(zip(theirs["name"], theirs["sum (us)"]))
        total, hidden = union_us(communication), union_us(communication) - union_us(communication + computation)
        hidden += union_us(computation)
        found.append({
            "rank": rank,
            "kernels": {name: {"ours": sums.get(name, 0.0), "theirs": float(theirs.get(name, 0.0))}
                        for name in sorted(set(sums) | set(theirs))},
            # Computing takes precedence in their breakdown.
            "communication_us": {"ours": total, "theirs": float(
                times.loc[rank, "compute_time(us)"] + times.loc[rank, "non_compute_time(us)"])},
            "overlap_percent": {"ours": 100 * hidden / total,
                                "theirs": float(overlap.loc[rank, "comp_comm_overlap_pctg"])},
        })
    print(json.dumps({"ranks": found}))


if __name__ == "__main__":
    main()
