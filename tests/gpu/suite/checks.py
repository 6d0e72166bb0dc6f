"""What must be right: kernels, driver, every collective, graphs, aborts, and what the sanitizer says."""

import os
import pathlib
import shutil
import subprocess
import tempfile

from .runner import Broken, Missing


# Lets a kernel of their own make all-reduces of up to 64 KiB.
BY_THEIR_OWN = {"CCL_CUDA_ONE_SHOT": "64K", "CCL_ALGO": "all_reduce:one_shot"}
# Lets programs be interpreted, whatever kernels there are.
INTERPRETED = {"CCL_CUDA_ONE_SHOT": "0", "CCL_CUDA_TWO_SHOT": "0"}
# Lets a kernel of their own make all-reduces between windows.
BETWEEN_WINDOWS = {"CCL_CUDA_TWO_SHOT": "1", "CCL_ALGO": "all_reduce:two_shot"}
# How data and flags share slots; each has kernels of its own.
PROTOCOLS = ("simple", "ll", "ll128")
# What replays say that no rank ended.
STOOD = "replays took longer"
# What `ccl perf` says where ranks do not reach each other's windows.
LOCAL_ONLY = "windows are used locally only"
# And where nothing of windows in pieces is lent.
NOT_LENT = "windows are not lent"


def prepare(suite):
    suite.step("machine", lambda: machine(suite), 20, is_needed=True)
    suite.step("kernels", lambda: kernels(suite), 300, is_needed=True)
    suite.step("driver's contract", lambda: contract(suite), 30)


def machine(suite):
    """Which machine this is; without a device nothing else makes sense."""
    suite.facts["doctor"] = suite.call([suite.bin / "ccl", "doctor"]).splitlines()
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,compute_mode,mig.mode.current"
        try:
            suite.facts["nvidia-smi"] = suite.call(["nvidia-smi", query, "--format=csv,noheader"], limit_s=8).strip()
        except Broken as why:
            # A container may have the program without its library; kernels run all the same.
            suite.facts["nvidia-smi"] = str(why)
    found = suite.fact("launch", ms=1)[-1]
    return f"an empty kernel takes {found['done_us']:.1f} µs"


def kernels(suite):
    """Machine code: what was packed, or what this machine's compiler makes of the packed sources."""
    if suite.options.image:
        return f"given: {suite.options.image}"
    packed = suite.bin / "kernels"
    if not any(packed.glob("*.cubin")):
        into = pathlib.Path(suite.work.name) / "kernels"
        found = suite.lines([suite.bin / "facts", "compile", f"into={into}", f"jobs={os.cpu_count()}"])[-1]
        suite.figure("compiling the kernels", found["seconds"], "s")
        packed = into
    suite.environment["CCL_CUDA_IMAGE"] = str(packed)
    return f"{len(list(packed.glob('*.cubin')))} images"


def contract(suite):
    driver = [suite.options.driver.resolve()] if suite.options.driver else []
    found = suite.lines([suite.bin / "contract", *driver])[-1]
    suite.facts["contract"] = found
    if found["failed"]:
        raise Broken(f"{found['failed']} checks failed: {[name for name, ok in found['checks'].items() if not ok]}")
    return f"{len(found['checks'])} checks"


def run(suite):
    dry = suite.dry
    for n in (1, 2) if dry else (1, 2, 4, 8):
        suite.step(f"{n} ranks in threads", lambda n=n: matrix(suite, n, "threads"), 60)
    for name in PROTOCOLS:
        suite.step(f"2 ranks, all by {name}", lambda name=name: by_protocol(suite, 2, name), 40)
    for n in (2,) if dry else (2, 4, 8):
        suite.step(f"{n} ranks in processes", lambda n=n: in_processes(suite, n), 60)
    for n in (2,) if dry else (2, 8):
        suite.step(f"{n} ranks, short all-reduces by a kernel of their own", lambda n=n: special(suite, n), 40)
    for n in (2,) if dry else (2, 8):
        suite.step(f"{n} ranks, all-reduces between windows", lambda n=n: windows(suite, n, "threads"), 60)
    suite.step("2 ranks in processes, all-reduces between windows", lambda: windows(suite, 2, "processes"), 40)
    for ranks_as, what in ("threads", "2 ranks"), ("processes", "2 ranks in processes"):
        suite.step(f"{what}, all-reduces between windows mapped in pieces",
                   lambda ranks_as=ranks_as: windows(suite, 2, ranks_as, "pieces"), 40)
    suite.step("2 ranks in processes, lent what lies in windows", lambda: lending(suite), 40)
    suite.step("2 ranks of the host, 2 of the device", lambda: mixed(suite), 60)
    for n in (2,) if dry else (1, 2, 4, 8):
        suite.step(f"{n} ranks in graphs", lambda n=n: graphs(suite, n), 40)
    for n in (2,) if dry else (2, 4, 8):
        suite.step(f"{n} ranks in processes, in graphs", lambda n=n: graphs(suite, n, "processes"), 40)
    for n in (2,) if dry else (1, 2, 4, 8):
        suite.step(f"{n} ranks, many replays", lambda n=n: replays(suite, n), 60)
    for name in PROTOCOLS:
        suite.step(f"3 ranks, a chain of calls by {name}", lambda name=name: chain(suite, {"CCL_PROTO": name, **INTERPRETED}), 30)
    suite.step("3 ranks, a chain of calls by a kernel of their own", lambda: chain(suite, BY_THEIR_OWN, [1031]), 30)
    for ranks_as in ("threads", "processes"):
        suite.step(f"2 ranks that suspend, in {ranks_as}", lambda ranks_as=ranks_as: suspended(suite, ranks_as), 40)
    suite.step("abort", lambda: abort(suite), 30)


def matrix(suite, n, ranks_as, env=None, words=None):
    """Every collective, dtype and operation, in place and out of place, at odd sizes."""
    if words is None:
        few = [["--counts", "0,67", "-d", "float"], ["--counts", "5", "-d", "bfloat16,int8", "-o", "all"]]
        all_of_all = [["--counts", "0,1,1031", "-d", "all", "-o", "all"], ["--counts", "1M+3", "-d", "float,half,uint8"]]
        words = few if suite.dry else all_of_all
    made = 0
    for some in words:
        made += len(suite.perf("all", n, [*some, "--placement", "both", "--iters", "0"], ranks_as, env))
    return f"{made} points"


def by_protocol(suite, n, name):
    """The kernels of one protocol. By themselves lengths above take ll for most dtypes."""
    words = ["--counts", "67", "-d", "bfloat16,int8", "-o", "all"] if suite.dry else ["--counts", "1031", "-d", "all", "-o", "all"]
    return matrix(suite, n, "threads", {"CCL_PROTO": name, **INTERPRETED}, [words])


def in_processes(suite, n):
    """The same between processes. Without a daemon that runs them side by side they take turns on the device."""
    env, how = side_by_side(suite)
    words = ["--counts", "0,67", "-d", "float"]
    if not suite.dry:
        # Taking turns costs milliseconds for every message.
        words = ["--counts", "0,1,1031", "-d", "all", "-o", "all"] if env else ["--counts", "1031", "-d", "float"]
    return matrix(suite, n, "processes", env, [words]) + how


def side_by_side(suite):
    """Starts the daemon that lets processes share a device at once, if there is one; what its clients need."""
    if suite.dry:
        return {}, ""
    if "daemon" not in suite.facts:
        folder = tempfile.mkdtemp(prefix="ccl-mps-")
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        suite.closers.append(lambda: shutil.rmtree(folder, ignore_errors=True))
        try:
            suite.call(["nvidia-cuda-mps-control", "-d"], limit_s=10, env=env)
            suite.closers.append(lambda: stop_daemon(suite, env))
            # A daemon may start and serve nobody.
            suite.perf("all_reduce", 1, ["--counts", "1", "--iters", "0"], "processes", env)
            # The daemon's clients share fewer queues than 4 of them would take with 32 each.
            suite.facts["daemon"] = {**env, "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
        except (Broken, Missing) as why:
            suite.facts["daemon"], suite.facts["no daemon"] = {}, str(why)
    env = suite.facts["daemon"]
    return env, "" if env else "; processes took turns on the device"


def stop_daemon(suite, env):
    subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env={**suite.environment, **env},
                   timeout=20, check=False, capture_output=True)


def mixed(suite):
    seats = {"CCL_DEVICE": "0,none,0,none"}
    words = [["--counts", "67", "-d", "float"]]
    if not suite.dry:
        words = [["--counts", "0,1,1031", "-d", "all", "-o", "sum"], ["--counts", "1M+3", "-d", "float"]]
    found = matrix(suite, 4, "threads", seats, words)
    if not suite.dry:
        found += ", in processes " + matrix(suite, 4, "processes", seats, [["--counts", "1031", "-d", "float"]])
    return found


def special(suite, n):
    """All-reduces of `one_shot` up to 64 KiB, which a kernel of their own makes: every dtype and operation, and replays."""
    words = ["--counts", "67" if suite.dry else "1,1031,8K", "-d", "float,bfloat16" if suite.dry else "all", "-o", "all"]
    made = suite.perf("all_reduce", n, [*words, "--placement", "both", "--iters", "0"], env=BY_THEIR_OWN)
    replayed = suite.perf("all_reduce", n, ["--counts", "67", "-w", "1", "--graph", "4", "--iters", "3"], env=BY_THEIR_OWN)
    return f"{len(made) + len(replayed)} points"


def windows(suite, n, ranks_as, memory="window"):
    """All-reduces of `two_shot` between windows, which a kernel of their own makes: every dtype and operation, and replays."""
    env, how = side_by_side(suite) if ranks_as == "processes" else ({}, "")
    env = {**env, **BETWEEN_WINDOWS}
    few = suite.dry or ranks_as == "processes"
    made = []
    for counts, dtypes, ops in [("67", "float,bfloat16", "all")] if suite.dry else \
            [("1,1031", "float,bfloat16" if few else "all", "all"), ("1M+3", "float,half,uint8", "sum")]:
        words = ["--counts", counts, "-d", dtypes, "-o", ops, "--placement", "both", "--iters", "0"]
        made += suite.perf("all_reduce", n, words, ranks_as, env, memory)
    words = ["--counts", "67", "-w", "1", "--graph", "4", "--iters", "3"]
    replayed = suite.perf("all_reduce", n, words, ranks_as, env, memory)
    for line in suite.complaints.splitlines():
        if LOCAL_ONLY in line:
            raise Broken(line)
    return f"{len(made) + len(replayed)} points{how}"


def lending(suite):
    """Every collective on windows in pieces, which other processes read where they are, and replays."""
    env, how = side_by_side(suite)
    env = {**env, "CCL_PROTO": "simple"}
    counts = "67" if suite.dry else "1031,1M+3" if env.get("CUDA_MPS_PIPE_DIRECTORY") else "1031"
    words = ["--counts", counts, "-d", "float", "--placement", "both", "--iters", "0"]
    made = suite.perf("all", 2, words, "processes", env, "pieces")
    words = ["--counts", "67", "-d", "float", "-w", "1", "--graph", "4", "--iters", "3"]
    replayed = suite.perf("all_gather,broadcast", 2, words, "processes", env, "pieces")
    for line in suite.complaints.splitlines():
        if LOCAL_ONLY in line or NOT_LENT in line:
            raise Broken(line)
    return f"{len(made) + len(replayed)} points{how}"


def suspended(suite, ranks_as):
    """Device memory is given back and taken again before each call; between processes by new handles."""
    env, how = side_by_side(suite) if ranks_as == "processes" else (None, "")
    words = ["--counts", "67" if suite.dry else "1,67,1031", "-d", "float", "--iters", "0", "--suspend"]
    return f"{len(suite.perf('all_reduce,all_gather,alltoall', 2, words, ranks_as, env))} points{how}"


def graphs(suite, n, ranks_as="threads"):
    env, how = side_by_side(suite) if ranks_as == "processes" else ({}, "")
    counts = "67" if suite.dry else "1031" if how else "1,1031,64K+1"
    words = ["--counts", counts, "-d", "float", "--placement", "both", "-w", "1"]
    made = suite.perf("all", n, [*words, "--graph", "1", "--iters", "2"], ranks_as, env)
    made += suite.perf("all_reduce,all_gather,sendrecv", n, [*words, "--graph", "4", "--iters", "2"], ranks_as, env)
    return f"{len(made)} points{how}"


def replays(suite, n):
    count, replays = (16, 30) if suite.dry else (1000, 100_000)
    # What stands behind a call that waits for a rank would hold up that rank's if they shared a queue.
    together = 64 if n <= 2 else 1
    found = suite.fact("replay", ranks=n, replays=replays, count=count, together=together, limit_s=50)[-1]
    suite.figure("a replay of a captured all-reduce", found["us_per_replay"], "µs", n, 4 * count)
    return f"{replays} replays, {found['grown_device_bytes']} bytes of the device and {found['grown_host_bytes']} of the host more"


def chain(suite, env, counts=(1031, 65_537)):
    """Calls that go on from each other's results: what equal data hides, such as a torn line or a stale one, is wrong at the end."""
    replays = 200 if suite.dry else 3000
    stood = 0
    for count in [67] if suite.dry else counts:
        stood += chain_of(suite, env, count, replays)
    how = f", tried again {stood} times" if stood else ""
    return f"{replays} calls of each length{how}"


def chain_of(suite, env, count, replays):
    """Streams of one process may share a queue of the device, in which the replay of one rank then stands behind one that waits for
    it: CUDA promises nothing else. That is said aloud and tried again; a wrong element is not."""
    for stood in range(3):
        try:
            suite.fact("chain", env, ranks=3, count=count, replays=replays, limit_s=5)
            return stood
        except Broken as why:
            if STOOD not in str(why) or suite.dry or stood == 2:
                raise
            suite.warn("replays of ranks of one process stood still: they may share a queue of the device")
    return 0


def abort(suite):
    found = suite.fact("abort")[-1]
    suite.figure("from an abort to the error", found["ms"], "ms", 2)
    return f"{found['ms']:.1f} ms"


def thorough(suite):
    """Last, because it may take long."""
    for tool in ("memcheck", "racecheck"):
        for n in (2, 1):
            suite.step(f"{tool}, {n} ranks", lambda tool=tool, n=n: sanitizer(suite, tool, n), 60)


def sanitizer(suite, tool, n):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if suite.dry or not pathlib.Path(program).exists():
        raise Missing("no compute-sanitizer" if not suite.dry else "a dry run has no machine code")
    # racecheck lets a launch wait for the kernels before it, which may wait for a rank whose launch that is; not for those of
    # other processes.
    ranks_as = "processes" if tool == "racecheck" and n > 1 else "threads"
    command = [program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", "--print-limit", "20",
               suite.bin / "ccl", "perf", "all", "-n", n, "--ranks-as", ranks_as, "--memory", "device", "--no-launcher",
               "--no-pin", "--counts", "67", "-d", "float,bfloat16", "--iters", "0", "--json"]
    # It makes code anew when that is loaded, which takes long for what nobody calls.
    env = {"CCL_DEVICE": "0", "CCL_MAX_NCHANNELS": "1", "CCL_TIMEOUT": "50s", "CUDA_MODULE_LOADING": "LAZY"}
    found = suite.call(command, env=env)
    return f"{sum(line.startswith('{') for line in found.splitlines())} points clean"
