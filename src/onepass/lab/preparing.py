"""Backends made ready ahead of a run, in several processes, in which nothing is measured.

What they compile and tune they keep on disk, each in its own cache, where the process that measures finds it. A
max-autotuned torch.compile takes up to a minute a shape, for compiling candidates and for timing them on the GPU. They
time in turns, since one that times beside others may choose by chance.

`python -m onepass.lab.preparing DEVICE LOCK` is one of them: it reads orders, a line each, and answers each with one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from onepass.lab.data.case import Case

#: It has nothing to compile.
READY = ("eager",)


def orders(cases: Sequence[Case], backends: Sequence[str]) -> list[tuple[Case, str]]:
    """What there is to prepare, the largest first: they take longest, and nobody is to wait for one at the end."""
    by_size = sorted(cases, key=lambda case: case.bytes, reverse=True)
    return [(case, name) for case in by_size for name in backends if name not in READY]


def prepare(wanted: Sequence[tuple[Case, str]], device: str, jobs: int, done: Callable[[Case, str], None]) -> None:
    """Each order once, in up to `jobs` processes. What a backend refuses it refuses again when it is to be measured,
    and a process that dies leaves its order to the run.
    """
    waiting: SimpleQueue[tuple[Case, str]] = SimpleQueue()
    for order in wanted:
        waiting.put(order)
    with tempfile.TemporaryDirectory() as folder, _processes(min(jobs, len(wanted)), device, folder) as processes:
        threads = [threading.Thread(target=_feed, args=(process, waiting, done)) for process in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextmanager
def _processes(count: int, device: str, folder: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {
        # Each would start as many compilers as there are cores.
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, count))),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
    }
    command = [sys.executable, "-m", __name__, device, str(Path(folder) / "lock")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _feed(process: subprocess.Popen[str], waiting: SimpleQueue[Any], done: Callable[[Case, str], None]) -> None:
    assert process.stdin is not None and process.stdout is not None
    with suppress(Empty, OSError):
        while True:
            case, name = waiting.get_nowait()
            process.stdin.write(json.dumps([case.to_json(), name]) + "\n")
            process.stdin.flush()
            if not process.stdout.readline():
                return
            done(case, name)


def take_turns(lock: str) -> None:
    """From here on this process lets torch.compile time candidates only while no other that has the lock does."""
    with suppress(ImportError):  # another PyTorch, which times elsewhere: then they do so side by side
        from torch._inductor.runtime import benchmarking

        for kind in vars(benchmarking).values():
            if isinstance(kind, type) and "benchmark_gpu" in vars(kind):
                kind.benchmark_gpu = _in_turn(kind.benchmark_gpu, lock)  # type: ignore[attr-defined]


def _in_turn(timed: Callable[..., Any], lock: str) -> Callable[..., Any]:
    import fcntl

    def alone(*arguments: Any, **options: Any) -> Any:
        if _held.is_held:  # one way to time may call another
            return timed(*arguments, **options)
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _held.is_held = True
            try:
                return timed(*arguments, **options)
            finally:
                _held.is_held = False

    return alone


class _Held(threading.local):
    is_held = False


_held = _Held()


def _work(device: str, lock: str) -> None:
    import torch

    from onepass.lab.backends import backend
    from onepass.lab.inputs import make_inputs

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what backends print is no answer
    if device == "cuda":
        take_turns(lock)
    for line in sys.stdin:
        fields, name = json.loads(line)
        case = Case.from_json(fields)
        with suppress(Exception):  # the run will say why
            backend(name).prepare(case, make_inputs(case, device, seed=0))
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2])
