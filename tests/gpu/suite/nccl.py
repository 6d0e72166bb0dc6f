#!/usr/bin/env python3
"""Times the installed NCCL on one device or several: a line of JSON for each size.

    nccl.py --look                       which library is there
    nccl.py --ranks N [--devices D]      all-reduce and all-gather, N ranks of one process on the first D devices [1] in turn

Memory and streams are PyTorch's; the calls are NCCL's C API.
"""

import argparse
import ctypes
import json
import pathlib
import sys
import time

FLOAT, SUM = 7, 0
SIZES = [8, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24, 1 << 28, 1 << 30]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--look", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    library, found = load()
    if options.look:
        version = asked(library) if library else 0
        print(json.dumps({"library": library is not None, "version": version, "found": found}))
        return 0
    if not library:
        print(found, file=sys.stderr)
        return 2
    Ranks(library, options.ranks, options.devices).time_all()
    return 0


def load():
    """The library that PyTorch uses, else the system's; what was found, in words."""
    tried = []
    for folder in map(pathlib.Path, sys.path):
        tried += folder.glob("nvidia/nccl/lib/libnccl.so.2")
    for path in [*tried, "libnccl.so.2"]:
        try:
            return ctypes.CDLL(str(path)), str(path)
        except OSError:
            continue
    return None, "no libnccl.so.2"


def asked(library):
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    return version.value


class Ranks:
    def __init__(self, library, n, devices):
        import torch
        self.torch, self.library, self.n = torch, library, n
        self.comms = (ctypes.c_void_p * n)()
        self.device_of = [rank % devices for rank in range(n)]
        made = library.ncclCommInitAll(self.comms, n, (ctypes.c_int * n)(*self.device_of))
        self.check(made, "ncclCommInitAll")
        self.streams = [torch.cuda.Stream(device) for device in self.device_of]

    def check(self, code, call):
        if code != 0:
            self.library.ncclGetErrorString.restype = ctypes.c_char_p
            raise SystemExit(f"{call}: {self.library.ncclGetErrorString(code).decode()}")

    def time_all(self):
        for size in SIZES:
            for name, call, blocks in (("allreduce", self.all_reduce, 1), ("allgather", self.all_gather, self.n)):
                count = max(1, size // 4 // blocks)
                zeros = lambda length: [self.torch.zeros(length, device=f"cuda:{device}") for device in self.device_of]
                send = [part + rank + 1 for rank, part in enumerate(zeros(count))]
                recv = zeros(count * blocks)
                self.wait()
                seconds = self.seconds(lambda: call(send, recv, count))
                factor = {"allreduce": 2 * (self.n - 1) / self.n, "allgather": (self.n - 1) / self.n}[name]
                moved = 4 * count * blocks
                print(json.dumps({"peer": "nccl", "coll": name, "ranks": self.n, "bytes": size, "time_us": seconds * 1e6,
                                  "algbw_gbps": moved / seconds / 1e9, "busbw_gbps": moved / seconds / 1e9 * (factor or 1),
                                  "ok": self.right(name, recv, count)}), flush=True)

    def wait(self):
        for device in set(self.device_of):
            self.torch.cuda.synchronize(device)

    def right(self, name, recv, count):
        n = self.n
        ends = [(0, n * (n + 1) / 2), (-1, n * (n + 1) / 2)] if name == "allreduce" else [(0, 1), (-1, n)]
        return all(float(one[at]) == wanted for one in recv for at, wanted in ends) and count > 0

    def seconds(self, call):
        """Of one call: calls back to back, as `ccl perf` times them."""
        def loop(times):
            start = time.perf_counter()
            for number in range(1, times + 1):
                call()
                if number % 256 == 0:
                    self.wait()
            self.wait()
            return (time.perf_counter() - start) / times
        loop(5)
        estimate = loop(5)
        return loop(max(3, min(20_000, int(0.05 / max(estimate, 1e-7)))))

    def all_reduce(self, send, recv, count):
        self.each("ncclAllReduce", lambda r: (self.at(send[r]), self.at(recv[r]), ctypes.c_size_t(count), FLOAT, SUM))

    def all_gather(self, send, recv, count):
        self.each("ncclAllGather", lambda r: (self.at(send[r]), self.at(recv[r]), ctypes.c_size_t(count), FLOAT))

    def each(self, name, arguments):
        call = getattr(self.library, name)
        self.check(self.library.ncclGroupStart(), "ncclGroupStart")
        for rank in range(self.n):
            stream = ctypes.c_void_p(self.streams[rank].cuda_stream)
            self.check(call(*arguments(rank), ctypes.c_void_p(self.comms[rank]), stream), name)
        self.check(self.library.ncclGroupEnd(), "ncclGroupEnd")

    @staticmethod
    def at(tensor):
        return ctypes.c_void_p(tensor.data_ptr())


if __name__ == "__main__":
    sys.exit(main())
