"""Cases fan out over a Ray cluster: one GPU and a fresh process for each, and their rows come back as they are ready.

The process that hands them out alone writes to the run's directory, so a kill at any moment loses no finished case.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from onepass.lab.data.case import Case
from onepass.lab.data.row import Row, from_json, to_json
from onepass.lab.data.run import Run, RunError
from onepass.lab.runner import Lab, rows_of

#: How often a case is given out before it is given up. Workers are lost to failing hosts and to other people's jobs;
#: but a case that itself takes its worker down would do so every time.
ATTEMPTS = 4


@contextmanager
def cluster() -> Iterator[Cluster]:
    """The cluster that RAY_ADDRESS names, else one of this machine alone, for as long as it is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError("--executor ray needs Ray: pip install 'onepass[cluster]'") from None
    address = os.environ.get("RAY_ADDRESS") or "local"
    with redirect_stdout(sys.stderr):  # where Ray's words on lost workers belong: standard output is for results
        try:
            _knock(address)
            ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"the Ray cluster ({address}) cannot be used: {reason}") from error
        try:
            yield Cluster()
        finally:
            ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself asks an address that does not answer again and again, for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Cluster:
    name = "ray"
    where = "in the Ray cluster"

    def has_gpu(self) -> bool:
        import ray

        return ray.cluster_resources().get("GPU", 0) >= 1

    def measure(self, run: Run, cases: list[Case]) -> Iterator[tuple[Case, dict[str, Any], Iterable[Row]]]:
        """As cases are finished. One that fails does not keep the others from finishing; it is raised after them."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        gpus = 1 if run.header["device"] == "cuda" else 0
        # A call is a fresh process. Attempts are counted here: Ray goes on for ever with what ends for want of memory.
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=1, max_retries=0)(_measured)
        attempts: Counter[Case] = Counter()
        pending: dict[Any, Case] = {}

        def give_out(case: Case) -> None:
            attempts[case] += 1
            pending[task.remote(run.header, case.to_json(), os.getcwd())] = case

        for case in cases:
            give_out(case)
        failures: list[RayTaskError] = []
        lost: list[str] = []
        while pending:
            [ready], _ = ray.wait(list(pending))
            case = pending.pop(ready)
            try:
                environment, rows = ray.get(ready)
            except RayTaskError as error:
                failures.append(error)
            except RayError:
                if attempts[case] < ATTEMPTS:
                    give_out(case)
                else:
                    lost.append(case.id)
            else:
                yield case, environment, [from_json(fields) for fields in rows]
        if failures:  # as the measurement would have raised it without a cluster
            raise failures[0].cause from failures[0]
        if lost:
            raise RunError(
                f"{', '.join(lost)}: the worker was lost {ATTEMPTS} times; the other cases are in {run.path}, "
                "and --resume tries again"
            )


def _measured(header: dict[str, Any], case: dict[str, Any], directory: str) -> tuple[dict[str, Any], list[Any]]:
    """On a worker: the environment and the rows of a case."""
    if os.path.isdir(directory):  # where a person's module lies, and the commit is that of what is measured
        os.chdir(directory)
    lab = Lab.of(header)
    return lab.environment, [to_json(row) for row in rows_of(lab, Case.from_json(case), header)]
