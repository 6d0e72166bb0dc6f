"""What only several devices can show: ranks on devices of their own, and what goes from device to device."""

import json
import pathlib
import sys

from . import checks, figures
from .runner import Broken, Missing

# Fewer than three ranks share nothing through multicast memory.
LEAST_FOR_MULTICAST = 3
# Algorithms whose ranks send the same to all others, under the protocol that shares.
TO_ALL = "all_reduce:two_shot;all_gather:direct;all_gather_v:direct;broadcast:direct"
SHARING = {"CCL_ALGO": TO_ALL, "CCL_PROTO": "simple"}
# More devices take more of the time than they would show.
MOST = 8
MIB = 1 << 20


def run(suite):
    """One step that says what there is, and the others only where there is more than one device."""
    name = "several devices"
    suite.step(name, lambda: look(suite), 30)
    n = counted(suite)
    if n < 2:
        return
    for ranks in sorted({2, n}):
        for ranks_as in ("threads", "processes"):
            suite.step(f"{name}, a rank on each of {ranks}, in {ranks_as}", lambda r=ranks, a=ranks_as: matrix(suite, r, a), 30)
    for ranks_as in ("threads", "processes"):
        suite.step(f"{name}, two ranks on each of two, in {ranks_as}", lambda a=ranks_as: shared(suite, a), 30)
        suite.step(f"{name}, windows, in {ranks_as}", lambda a=ranks_as: windows(suite, n, a), 25)
    suite.step(f"{name}, short all-reduces and graphs", lambda: short(suite, n), 25)
    suite.step(f"{name}, multicast", lambda: multicast(suite, n), 40)
    suite.step(f"{name}, bandwidth", lambda: bandwidth(suite, n), 40)
    suite.step(f"{name}, channels", lambda: figures.channels(suite, n, own(suite), ", a device each"), 40)
    suite.step(f"{name}, NCCL", lambda: nccl(suite, n), 45)


def counted(suite):
    """How many devices the steps take, also where the one that looks was left out."""
    if "devices" not in suite.facts and not suite.stopped:
        suite.left_s = 30.0
        try:
            suite.facts["devices"] = suite.fact("devices")[-1]
        except (Broken, Missing):
            return 0
    return min(suite.facts.get("devices", {}).get("devices", 0), MOST)


def look(suite):
    found = suite.fact("devices")[-1]
    suite.facts["devices"] = found
    if found["devices"] < 2:
        why = "the machine has one device: nothing between devices was checked"
        suite.warn(why)
        raise Missing(why)
    said = f"{found['devices']} devices"
    if found["apart"]:
        pairs = ", ".join(f"{one} and {other}" for one, other in found["apart"])
        return f"{said}; kernels have no way between {pairs}, so ranks there go through the host"
    n = min(found["devices"], MOST)
    # Whoever reaches whom by memory has to go there.
    others = [row for row in ways(suite, n) if row["paths"] != ["p2p"]]
    if others:
        raise Broken(f"expected p2p between all ranks, found {others[0]['paths']} at rank {others[0]['rank']}")
    return f"{said}, all by memory; multicast memory is {'offered' if found['multicast'] else 'not there'}"


def ways(suite, n, env=None):
    """What each of n ranks on devices of their own says of its ways."""
    rows = suite.fact("ways", {**own(suite), **(env or {})}, ranks=n)
    devices = {row["device"] for row in rows}
    if len(devices) < n:
        raise Broken(f"expected {n} ranks on devices of their own, found devices {sorted(devices)}")
    return rows


def own(suite):
    """Settings for ranks on devices of their own."""
    return {"CCL_DEVICE": "local"}


def small(suite):
    """Every collective, dtype and operation, in few points."""
    if suite.dry:
        return [["--counts", "0,67", "-d", "float"], ["--counts", "5", "-d", "bfloat16,int8", "-o", "all"]]
    return [["--counts", "0,1,1031", "-d", "all", "-o", "all"], ["--counts", "1M+3", "-d", "float,half,uint8"]]


def matrix(suite, n, ranks_as):
    return checks.matrix(suite, n, ranks_as, own(suite), small(suite))


def shared(suite, ranks_as):
    """Ranks beside each other on a device, and others on another."""
    env = {"CCL_DEVICE": "0,0,1,1"}
    more, how = checks.side_by_side(suite) if ranks_as == "processes" else ({}, "")
    words = small(suite)
    if how:
        # Taking turns costs milliseconds for every message.
        words = [["--counts", "1031", "-d", "float"]]
    return checks.matrix(suite, 4, ranks_as, {**env, **more}, words) + how


def windows(suite, n, ranks_as):
    """All-reduces between windows: by peer access in a process, by handles between processes."""
    env = {**own(suite), **checks.BETWEEN_WINDOWS}
    words = ["--counts", "67" if suite.dry else "1,1031,1M+3", "-d", "float,bfloat16", "-o", "all"]
    made = suite.perf("all_reduce", n, [*words, "--placement", "both", "--iters", "0"], ranks_as, env, "window")
    words = ["--counts", "67", "-w", "1", "--graph", "4", "--iters", "3"]
    return f"{len(made) + len(suite.perf('all_reduce', n, words, ranks_as, env, 'window'))} points"


def short(suite, n):
    """All-reduces by a kernel of their own, and calls of every collective in graphs."""
    words = ["--counts", "67" if suite.dry else "1,1031,8K", "-d", "float,bfloat16", "-o", "all"]
    env = {**own(suite), **checks.BY_THEIR_OWN}
    made = suite.perf("all_reduce", n, [*words, "--placement", "both", "--iters", "0"], env=env)
    words = ["--counts", "67" if suite.dry else "1,1031,64K+1", "-d", "float", "-w", "1", "--graph", "2", "--iters", "2"]
    return f"{len(made) + len(suite.perf('all', n, words, env=own(suite)))} points"


def multicast(suite, n):
    """What all ranks are sent, stored once; the same over edges is right, too, and is what its times are held to."""
    if n < LEAST_FOR_MULTICAST:
        raise Missing(f"it serves from {LEAST_FOR_MULTICAST} ranks on, and the machine has {n} devices")
    if not suite.facts["devices"]["multicast"]:
        raise Missing("no device or driver here has multicast memory")
    rows = ways(suite, n, SHARING)
    without = [row["rank"] for row in rows if row["protocol"] != "switch"]
    if without or not any(row["payloads"] for row in rows):
        # Why not is in the log.
        raise Broken(f"expected switch at all ranks and payloads stored once, found {rows[0]}; {reason(suite, n)}")
    made = 0
    words = ["--counts", "67,5003" if suite.dry else "1,1031,1M+3", "-d", "float,int8", "--iters", "0"]
    for ranks_as in ("threads", "processes"):
        for switch in ("1", "0"):
            env = {**own(suite), **SHARING, "CCL_CUDA_SWITCH": switch}
            made += len(suite.perf("all_reduce,all_gather,broadcast", n, words, ranks_as, env))
    for switch, kind in (("1", "by multicast"), ("0", "over edges")):
        timed(suite, n, kind, "all_reduce,all_gather,broadcast", {**SHARING, "CCL_CUDA_SWITCH": switch})
    return f"{made} points; {sum(row['payloads'] for row in rows)} payloads of a broadcast stored once"


def reason(suite, n):
    """Why ranks do without multicast memory, as their log has it."""
    file = pathlib.Path(suite.work.name) / "switch.log"
    env = {**SHARING, "CCL_DEBUG": "INFO", "CCL_DEBUG_SUBSYS": "NVLS", "CCL_DEBUG_FILE": str(file)}
    ways(suite, n, env)
    said = [line for line in file.read_text().splitlines() if "multicast" in line]
    return said[-1] if said else "the log says nothing of it"


def timed(suite, n, kind, operations, env=None):
    """Bandwidth of ranks on devices of their own."""
    # Those that NCCL is timed with.
    sizes = ["-b", "1K,4K" if suite.dry else "1K,16K,256K,1M,16M,256M", "--placement", "out"]
    timing = ["--iters", "3", "-w", "1"] if suite.dry else ["-t", "0.05"]
    rows = suite.perf(operations, n, [*sizes, *timing, "--check", "1"], env={**own(suite), **(env or {})})
    for row in rows:
        suite.figure(f"{row['coll']}, a device each{', ' if kind else ''}{kind}", row["busbw_gbps"], "GB/s", n, row["bytes"])
    return rows


def bandwidth(suite, n):
    for ranks in sorted({2, n}):
        rows = timed(suite, ranks, "", "all_reduce,all_gather,reduce_scatter,alltoall,sendrecv")
        suite.facts[f"bandwidth of {ranks} devices"] = rows
    words = ["-b", "8", "--placement", "out", *(["--iters", "3", "-w", "1"] if suite.dry else ["-t", "0.05"])]
    for row in suite.perf("all_reduce,all_gather,broadcast,pingpong", n, words, env=own(suite)):
        suite.figure(f"{row['coll']}, a device each", row["time_us"], "µs", n, row["bytes"])


def nccl(suite, n):
    """The installed library, a rank on each device, and how ours stands beside it."""
    program = pathlib.Path(__file__).with_name("nccl.py")
    found = json.loads(suite.call([sys.executable, program, "--look"]))
    if suite.dry:
        raise Missing(f"a dry run has no devices for it; {found['found']}")
    if not found["library"]:
        raise Missing(found["found"])
    rows = suite.lines([sys.executable, program, "--ranks", n, "--devices", n])
    suite.facts["nccl on several devices"] = rows
    for row in rows:
        value, unit = (row["time_us"], "µs") if row["bytes"] <= 8 else (row["busbw_gbps"], "GB/s")
        suite.figure(f"NCCL's {row['coll']}, a device each", value, unit, n, row["bytes"])
    if not all(row["ok"] for row in rows):
        raise Broken("NCCL's results are wrong, so this suite calls it wrongly")
    compare(suite, n, rows)
    return f"version {found['version']}, a rank on each of {n} devices"


def compare(suite, n, theirs):
    """Goals: the longest calls that both have timed."""
    ours = suite.facts.get(f"bandwidth of {n} devices", [])
    for name in ("allreduce", "allgather"):
        def of(rows):
            return {row["bytes"]: row["busbw_gbps"] for row in rows if row["coll"] == name and row["bytes"] >= MIB}
        own_rows, their_rows = of(ours), of(theirs)
        both = sorted(set(own_rows) & set(their_rows))
        if both:
            found = f"{own_rows[both[-1]]:.1f} and {their_rows[both[-1]]:.1f} GB/s"
            suite.goal(f"{name}, {n} devices, {both[-1]} B", own_rows[both[-1]] >= their_rows[both[-1]], found,
                       "as fast as NCCL")
