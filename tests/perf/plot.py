#!/usr/bin/env python3
"""Draws a record of ccl beside its peers: how many times as fast as the best of them, cell by cell.

    pip install matplotlib
    tests/perf/plot.py tests/perf/record/RECORD.csv docs/figures/peers.svg
"""

import csv
import math
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "ccl"
from matplotlib import colors, pyplot

COLLECTIVES = [
    "allreduce",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "sendrecv",
    "pingpong",
]
TITLES = {"shm": "shared memory", "tcp": "TCP"}


def ratios(path):
    """{(transport, ranks): {(collective, bytes): best peer's median / ccl's}}, with the CPUs where most cells were measured."""
    ours, peers = {}, {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            place = row["transport"], int(row["ranks"]), row.get("cpus", "")
            cell = place, (row["collective"], int(row["bytes"]))
            time = float(row["median_us"])
            table = ours if (row.get("peer") or row["side"]).startswith("ccl") else peers
            table[cell] = min(time, table.get(cell, math.inf))
    places = {}
    for (place, cell), time in ours.items():
        if (place, cell) in peers:
            places.setdefault(place, {})[cell] = peers[place, cell] / time
    panels = {}
    for (transport, ranks, _), cells in places.items():
        if len(cells) > len(panels.get((transport, ranks), {})):
            panels[transport, ranks] = cells
    return panels


def size(count):
    """64 Ki and the like."""
    for power, unit in ((30, "G"), (20, "M"), (10, "K")):
        if count >= 1 << power:
            return f"{count >> power}{unit}"
    return str(count)


def draw(panels, out):
    """One heat map for each transport and number of ranks."""
    transports = sorted({transport for transport, _ in panels})
    counts = sorted({ranks for _, ranks in panels})
    sizes = sorted({count for cells in panels.values() for _, count in cells})
    figure, axes = pyplot.subplots(
        len(transports), len(counts), figsize=(4.4 * len(counts), 3.4 * len(transports)), squeeze=False
    )
    # As much slower is as dark as as much faster.
    norm = colors.TwoSlopeNorm(0, -1.6, 1.6)
    for row, transport in enumerate(transports):
        for column, ranks in enumerate(counts):
            axis, cells = axes[row][column], panels.get((transport, ranks), {})
            grid = [[math.log2(cells.get((name, count), math.nan)) for count in sizes] for name in COLLECTIVES]
            axis.imshow(grid, cmap="RdBu", norm=norm, aspect="auto")
            for y, name in enumerate(COLLECTIVES):
                for x, count in enumerate(sizes):
                    ratio = cells.get((name, count))
                    if ratio is not None:
                        shade = "white" if abs(math.log2(ratio)) > 1.1 else "black"
                        axis.text(x, y, f"{ratio:.2f}", ha="center", va="center", fontsize=7, color=shade)
            axis.set_xticks(range(len(sizes)), [size(count) for count in sizes], fontsize=8)
            axis.set_yticks(range(len(COLLECTIVES)), COLLECTIVES if column == 0 else [], fontsize=8)
            axis.set_title(f"{ranks} ranks, {TITLES.get(transport, transport)}", fontsize=9)
    figure.suptitle("best peer's time ÷ ccl's: above 1 (blue) ccl is faster; bytes across", fontsize=10)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(ratios(sys.argv[1]), sys.argv[2])
