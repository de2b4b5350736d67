"""The search on a real GPU: what it may choose is right, and what it chose is what calls take, batch-invariant."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import onepass
from gpu.cases import PLAIN, RESIDUAL, Case, differentiated, ours, tensors_of, with_rows
from gpu.exact import assert_same_bits
from onepass import search
from onepass.plan import in_force, table
from onepass.plan.candidates import backward_candidates, forward_candidates
from onepass.plan.device import device_of
from onepass.plan.plans import Choice

CASES = [PLAIN["block rows"], RESIDUAL["one row"], with_rows(PLAIN["split"], 37)]


def some(choices: list[Choice]) -> list[Choice]:
    """Six or a few more, the planner's own first: each one has to be compiled."""
    return choices[:: max(1, len(choices) // 6)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    table.forget()
    yield tmp_path
    table.forget()
    in_force.renew()


def candidates_of(case: Case, direction: str) -> list[Choice]:
    x, weight, bias, residual = tensors_of(case)[:4]
    plan = onepass.explain(x, weight, bias, op=case.op, residual=residual)
    found = forward_candidates if direction == "forward" else backward_candidates
    return some(found(plan.problem, device_of(x.device), plan.norm.centred, 16))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_candidate_computes_the_same(case: Case, direction: str) -> None:
    tensors = tensors_of(case)
    with in_force.override(few_rows=0):
        expected = differentiated(ours(case), tensors)
    ran = 0
    for choice in candidates_of(case, direction):
        with in_force.force(direction, choice):
            try:
                got = differentiated(ours(case), tensors)
            except RuntimeError:  # more than the GPU has: a search passes over it
                continue
        ran += 1
        for name, result in expected.items():
            torch.testing.assert_close(got[name], result, msg=partial("{}, {}: {}".format, name, choice))
    assert ran > 1


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_what_was_tuned_is_what_calls_take(case: Case, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, choose in (("forward_candidates", forward_candidates), ("backward_candidates", backward_candidates)):
        monkeypatch.setattr(search, name, lambda *problem, choose=choose: some(choose(*problem)))
    x, weight, bias, residual = (tensor for tensor in tensors_of(case)[:4])
    found = onepass.tune(x, weight, bias, op=case.op, residual=residual)
    assert len(found) == 2 and len(list(cache.glob("*.jsonl"))) == 1
    for entry in found:
        assert 0 < entry.us <= entry.model_us
    plan = onepass.explain(x, weight, bias, op=case.op, residual=residual)
    assert plan.forward is not None and plan.forward.schedule == found[0].schedule
    assert plan.backward is not None and plan.backward.schedule == found[1].schedule
    assert onepass.tune(x, weight, bias, op=case.op, residual=residual) == [], "it is known"

    run = ours(case)
    every, _ = run(x, weight, bias, residual)
    for count in (1, 7, 300):
        part, _ = run(x[:count], weight, bias, None if residual is None else residual[:count])
        assert_same_bits(part, every[:count])


def test_a_call_that_asks_is_tuned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    monkeypatch.setattr("onepass.eager.search", lambda *_: searches.append(1))
    x, weight, *_ = tensors_of(PLAIN["one row"])
    for _ in range(3):
        onepass.rms_norm(x, weight, autotune=True)
    assert len(searches) == 1
    monkeypatch.setenv("ONEPASS_AUTOTUNE", "1")
    onepass.rms_norm(x, weight, autotune=False)
    assert len(searches) == 1
