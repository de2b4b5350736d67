"""Many kernels compiled at once, by processes of their own; what they make is found on disk afterwards (binaries.py).

For a search, which has a hundred kernels to compile. Plain processes that read their orders from a pipe, because those
of multiprocessing would run the caller's script again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Any

#: Starting a process takes as long as compiling some ten kernels.
WORTHWHILE = 8
MOST = 16


def compile_all(kernels: Sequence[tuple[Any, ...]], capability: tuple[int, int]) -> None:
    """What `launch.gather` noted. One that does not compile is left to whoever asks for it next."""
    orders = list(dict.fromkeys(pickle.dumps((*kernel, capability)) for kernel in kernels))
    idle = _workers() if len(orders) >= WORTHWHILE else None
    if idle is None:
        return

    def compiled(order: bytes) -> None:
        worker = idle.get()
        with suppress(OSError):  # it is gone
            worker.stdin.write(order)
            worker.stdin.flush()
            worker.stdout.readline()
        idle.put(worker)

    with ThreadPoolExecutor(MOST) as threads:
        list(threads.map(compiled, orders))


@cache
def _workers() -> SimpleQueue[Any] | None:
    """Idle processes, which end when this one does and their pipes close; None where there are no cores for them."""
    count = min(MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if count < 3:
        return None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __name__]
    idle: SimpleQueue[Any] = SimpleQueue()
    for _ in range(count):
        # In a session of its own, so that Ctrl-C is for this process alone; it ends with its pipe.
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        idle.put(worker)
    return idle


def _work() -> None:
    from onepass.plan.launch import compile_to_disk

    while True:
        try:
            order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with suppress(Exception):  # whoever asks for it next compiles it again, and hears why it cannot be done
            compile_to_disk(*order)
        os.write(1, b"\n")


if __name__ == "__main__":
    _work()
