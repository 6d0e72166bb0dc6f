#!/usr/bin/env python3
"""All-reduces of a training step with torch.distributed and Gloo: the peer of `ccl perf --workload`.

    ccl perf --workload resnet50 --list | python tests/perf/ddp_gloo.py

Starts its ranks itself, two by default, on this host. Reads bytes of each all-reduce, one per line. Each
step starts them all with async_op=True, in the order of the list, and then waits for all, as
DistributedDataParallel does. The first step is checked. Prints one line of JSON with the keys of ccl's.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, options, sizes, store):
    if options.pin:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    if options.threads:
        torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    buckets = [torch.empty(size // 4, dtype=torch.float32) for size in sizes]
    wrong = checked_step(rank, options, buckets)
    for _ in range(options.warm_up - 1):
        step(options, buckets)
    times = [timed_step(options, buckets) for _ in range(options.iterations)]
    if rank == 0:
        print(json.dumps(outcome(options, sizes, times, wrong)), flush=True)
    dist.destroy_process_group()


def step(options, buckets):
    under_way = []
    for bucket in buckets:
        if options.in_flight and len(under_way) >= options.in_flight:
            under_way[-options.in_flight].wait()
        under_way.append(dist.all_reduce(bucket, async_op=True))
    for work in under_way:
        work.wait()


def timed_step(options, buckets):
    """Microseconds of a step on the slowest rank."""
    # Sums of sums would soon be infinite.
    for bucket in buckets:
        bucket.fill_(1.0)
    dist.barrier()
    start = time.perf_counter()
    step(options, buckets)
    elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return round(elapsed.item() * 1e6, 3)


def checked_step(rank, options, buckets):
    """Wrong elements on all ranks after one step."""
    for index, bucket in enumerate(buckets):
        bucket.copy_(torch.arange(bucket.numel()) % 1021 + rank + index)
    step(options, buckets)
    wrong = 0
    for index, bucket in enumerate(buckets):
        ranks = options.ranks
        mine = torch.arange(bucket.numel()) % 1021 + index
        expected = (mine * ranks + ranks * (ranks - 1) // 2).to(torch.float32)
        wrong += int((bucket != expected).sum())
    total = torch.tensor([wrong])
    dist.all_reduce(total)
    return int(total.item())


def outcome(options, sizes, times, wrong):
    return {
        "peer": "gloo-torch",
        "version": torch.__version__,
        "ranks": options.ranks,
        "buckets": len(sizes),
        "bytes": sum(sizes),
        "in_flight": options.in_flight or len(sizes),
        "min_us": min(times),
        "median_us": round(statistics.median(times), 3),
        "max_us": max(times),
        "times_us": times,
        "wrong": wrong,
        "ok": wrong == 0,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", type=argparse.FileType(), default=sys.stdin)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("-w", "--warm-up", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--in-flight", type=int, default=0, help="all-reduces under way at a time; 0: all")
    parser.add_argument("--pin", action="store_true", help="bind rank r and its threads to the r-th processor")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch's own; 0: as torch chooses")
    options = parser.parse_args()
    sizes = [int(line) for line in options.list if line.strip()]
    options.list = None
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(rank_main, args=(options, sizes, store), nprocs=options.ranks)


if __name__ == "__main__":
    main()
