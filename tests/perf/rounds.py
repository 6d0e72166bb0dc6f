#!/usr/bin/env python3
"""Runs two commands in turn and compares them: rounds of one run, so that both meet the same machine.

    python tests/perf/rounds.py 5 'ccl perf --workload resnet50 --json' \\
        'python tests/perf/ddp_gloo.py resnet50.txt'

Each command prints a line of JSON with `median_us`. Prints every round, then the median of each side and
of the rounds' ratios, theirs divided by ours: above 1 the first command is faster.
"""

import json
import statistics
import subprocess
import sys


def median_us(command):
    """The median that the last line of the command's output gives."""
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if not result["ok"]:
        sys.exit(f"wrong results: {command}")
    return result["median_us"]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    rounds, ours, theirs = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    times = []
    for index in range(rounds):
        # Who goes first changes, so that neither side always finds the machine as the other left it.
        order = (ours, theirs) if index % 2 == 0 else (theirs, ours)
        found = {command: median_us(command) for command in order}
        times.append((found[ours], found[theirs]))
        print(f"round {index + 1}: ours {found[ours]:.0f} us, theirs {found[theirs]:.0f} us, "
              f"ratio {found[theirs] / found[ours]:.2f}", flush=True)
    ratios = [b / a for a, b in times]
    print(f"median: ours {statistics.median(a for a, _ in times):.0f} us, "
          f"theirs {statistics.median(b for _, b in times):.0f} us, "
          f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
