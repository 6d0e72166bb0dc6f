"""Steps with time limits, and what came of them."""

import json
import os
import pathlib
import platform
import signal
import subprocess
import tempfile
import time

# What a step may come to. Only the first is as it should be.
PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
# How much of what a command says is kept of a step that failed.
MOST_SAID = 8000


class Missing(Exception):
    """What a step needs is not there."""


class Broken(Exception):
    """A step found something wrong."""


class Suite:
    def __init__(self, options):
        self.options, self.dry = options, options.dry
        self.bin = options.bin
        self.start = time.monotonic()
        self.steps, self.goals, self.figures = [], [], []
        self.facts, self.warnings = {}, []
        self.left_s = 0.0
        self.stopped = ""
        self.said = ""
        self.work = tempfile.TemporaryDirectory(prefix="ccl-gpu-")
        self.closers = []
        self.environment = self.usual_environment()

    def usual_environment(self):
        own = ("CCL_", "NCCL_", "CUDA_MPS", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_")
        kept = ("CCL_NVCC", "CCL_FAKE_FAIL", "CCL_FAKE_DEVICES", "CCL_FAKE_DEAF_DEVICE", "CCL_FAKE_PLANT", "CCL_FAKE_CONNECTIONS")
        env = {k: v for k, v in os.environ.items() if k in kept or not k.startswith(own)}
        env["CCL_TUNING_FILE"] = "none"
        # Streams of ranks that share a device may not wait for each other behind one queue, and code that is loaded
        # late would wait for kernels that wait for it.
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        env["CUDA_MODULE_LOADING"] = "EAGER"
        if self.options.driver:
            env["CCL_CUDA_LIBRARY"] = str(self.options.driver.resolve())
        if self.options.image:
            env["CCL_CUDA_IMAGE"] = str(self.options.image.resolve())
        if self.dry:
            env.update(CCL_CUDA_THREADS="64", CCL_BUFFSIZE="16K", CCL_SLOTS="4")
            env.setdefault("CCL_FAKE_DEVICES", "4")
        return env

    def most_channels(self, n):
        """Channels of which all blocks of n ranks are on one device at once, also if programs have two lanes."""
        return 4 if self.dry else max(1, min(32, 64 // n))

    def step(self, name, work, limit_s, is_needed=False):
        """Runs work() as a step of at most limit_s seconds, if the budget has them. If all others need it and it does not
        pass, none of them runs."""
        if self.options.only not in name:
            return
        left = self.options.budget - (time.monotonic() - self.start)
        begun = time.monotonic()
        self.left_s = min(limit_s, left, self.options.most or limit_s)
        if left < 1 or self.stopped:
            status, why = NOT_RUN, self.stopped or "the time was used up"
        else:
            print(f"... {name}", flush=True)
            self.said = ""
            status, why = attempt(work)
        seconds = time.monotonic() - begun
        if is_needed and status != PASSED:
            self.stopped = self.stopped or f"{name}: {status}"
        # What the last command of a step that failed has said besides.
        said = {"said": self.said} if status == FAILED and self.said else {}
        if status == FAILED:
            print(f"!!! {name}: {why}", flush=True)
        self.steps.append({"step": name, "status": status, "seconds": round(seconds, 1), "why": why, **said})

    def call(self, command, limit_s=None, env=None, where=None):
        """The standard output of a command that must succeed; ended with all its children at the limit."""
        limit_s = self.left_s if limit_s is None else min(limit_s, self.left_s)
        begun = time.monotonic()
        command, out, err = [str(word) for word in command], "", ""
        try:
            process = subprocess.Popen(command, env={**self.environment, **(env or {})}, cwd=where, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except FileNotFoundError as error:
            raise Missing(f"{command[0]} is not there") from error
        try:
            out, err = process.communicate(timeout=max(0.1, limit_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise Broken(f"{shown(command)}: ended after {limit_s:.0f} s; {last(err)}") from None
        finally:
            self.left_s -= time.monotonic() - begun
            self.said = f"{out or ''}\n{err or ''}".strip()[-MOST_SAID:]
        if process.returncode != 0:
            raise Broken(f"{shown(command)}: status {process.returncode}; {last(err) or last(out)}")
        self.complaints = err
        return out

    def lines(self, command, **more):
        """The JSON lines that a command prints; at least one."""
        found = [json.loads(line) for line in self.call(command, **more).splitlines() if line.startswith("{")]
        if not found:
            raise Broken(f"{shown([str(word) for word in command])}: printed no result")
        return found

    def fact(self, name, env=None, **options):
        words = [f"{key}={value}" for key, value in options.items()]
        return self.lines([self.bin / "facts", name, *words], env={"CCL_DEVICE": "0", **(env or {})})

    def perf(self, operation, n, words, ranks_as="threads", env=None, memory="device"):
        """Rows of `ccl perf` on device memory; wrong elements end it with another status than 0."""
        env = {"CCL_DEVICE": "0", **(env or {})}
        command = [self.bin / "ccl", "perf", operation, "-n", n, "--ranks-as", ranks_as, "--memory", memory,
                   "--no-launcher", "--no-pin", "--json", *words]
        rows = self.lines(command, env=env)
        bad = [row for row in rows if not row["ok"]]
        if bad:
            raise Broken(f"{len(bad)} of {len(rows)} results are wrong, first {bad[0]}")
        return rows

    def warn(self, text):
        """Says something now, and again beside the verdict."""
        print(f"!!! {text}", flush=True)
        self.warnings.append(text)

    def figure(self, name, value, unit, ranks=None, size=None):
        self.figures.append({"figure": name, "ranks": ranks, "bytes": size, "value": value, "unit": unit})

    def goal(self, name, is_met, found, wanted):
        status = "not judged" if self.dry else "met" if is_met else "MISSED"
        self.goals.append({"goal": name, "status": status, "found": found, "wanted": wanted})

    def close(self):
        for closer in reversed(self.closers):
            closer()
        self.work.cleanup()

    def finish(self):
        count = {status: sum(step["status"] == status for step in self.steps) for status in (PASSED, FAILED, NOT_RUN)}
        verdict = ", ".join(f"{number} {status}" for status, number in count.items())
        missed = sum(goal["status"] == "MISSED" for goal in self.goals)
        verdict += f"; {missed} of {len(self.goals)} goals missed" if self.goals else ""
        verdict += "".join(f"; {warning}" for warning in self.warnings)
        if self.dry:
            verdict += "; a dry run: no figure is one of a device"
        passed = count[PASSED] > 0 and count[FAILED] == 0 and (self.dry or count[NOT_RUN] == 0)
        report = {"dry": self.dry, "passed": passed, "verdict": verdict, "seconds": round(time.monotonic() - self.start, 1),
                  "machine": {"processor": platform.machine(), "kernel": platform.release(), "cores": os.cpu_count()},
                  "warnings": self.warnings, "steps": self.steps, "goals": self.goals, "figures": self.figures, "facts": self.facts}
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(report, indent=1) + "\n")
        table = subprocess.run([str(self.bin / "facts"), "table", str(self.options.out)], check=False)
        if table.returncode not in (0, 1):
            print(verdict)
        if count[FAILED] or not count[PASSED]:
            return 1
        return 0 if passed else 3


def attempt(work):
    """What came of a piece of work, and why."""
    try:
        why = work()
        return PASSED, why or ""
    except Missing as missing:
        return NOT_RUN, str(missing)
    except Broken as broken:
        return FAILED, str(broken)
    except (KeyError, IndexError, ValueError, OSError) as error:
        return FAILED, f"{type(error).__name__}: {error}"


def shown(command):
    return " ".join([pathlib.Path(command[0]).name, *command[1:]])


def last(text):
    """The last lines of an output, in one."""
    return " / ".join(text.strip().splitlines()[-3:])[-600:]
