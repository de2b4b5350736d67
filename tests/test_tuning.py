"""Tuned choices: kept, found again, safe among processes; and a search that takes the fastest of what can run."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import onepass
from cases import BF16, F32, OPS, Case, explained, inputs_of, random
from onepass import search as searching
from onepass.checks import Options
from onepass.plan import backward_plans, forward_choices, forward_plans, in_force, launch, table, tuned, turns
from onepass.plan.cache import cache_directory
from onepass.plan.candidates import backward_candidates, forward_candidates
from onepass.plan.device import INTERPRETER, Device
from onepass.plan.plans import Choice
from onepass.plan.table import Entry
from onepass.plan.tiles import Tile
from onepass.spec import Problem
from oracle import assert_results
from planning import of_one_program, order_of_sums

H200 = Device("NVIDIA H200", sms=132, registers=65536, shared=233472, cooperative=True)
GLUON = replace(H200, clusters=True, gluon=True)
GPU = "interpreter"
ROOT = Path(__file__).parents[1]
ENTRY = Entry("some problem", "tile", Tile(512, 2, 1, block=32), 1.5, 2.0, 7, "then")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own; what it taught the planner is forgotten after it."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    table.forget()
    yield tmp_path / "cache"
    table.forget()
    in_force.renew()


def test_an_entry_is_found_again_by_this_process_and_the_next(cache):
    assert table.find(GPU, ENTRY.signature) is None
    table.keep(GPU, ENTRY)
    assert table.find(GPU, ENTRY.signature) == ENTRY
    table.forget()
    assert table.find(GPU, ENTRY.signature) == ENTRY
    table.keep(GPU, replace(ENTRY, us=1.0))
    table.forget()
    assert table.find(GPU, ENTRY.signature).us == 1.0, "the last one counts"
    assert table.find("another GPU", ENTRY.signature) is None


def test_the_tables_of_the_package_are_whole_and_name_the_run_behind_each_entry():
    paths = sorted(Path(table.__file__).with_name("tables").glob("*.jsonl"))
    assert paths
    for path in paths:
        entries = [Entry.from_line(line) for line in path.read_text().splitlines()]
        assert all(entries) and len({entry.signature for entry in entries}) == len(entries)
        for entry in entries:
            assert entry.us <= entry.model_us
            assert (ROOT / entry.run).is_file(), entry


def test_damaged_and_foreign_lines_are_passed_over(cache):
    table.keep(GPU, ENTRY)
    path = cache / table.file_name(GPU)
    lines = [
        "",
        "no json",
        "[]",
        json.dumps({"format": 99}),
        ENTRY.to_line()[:40],
        json.dumps({"format": 1, "tile": 3}),
    ]
    path.write_text("\n".join(lines) + "\n" + replace(ENTRY, signature="another").to_line())
    table.forget()
    assert table.find(GPU, ENTRY.signature) is None and table.find(GPU, "another") is not None


def test_a_cache_that_cannot_be_written_is_done_without(cache, monkeypatch):
    cache.write_text("a file where the directory would be")
    table.keep(GPU, ENTRY)
    assert table.find(GPU, ENTRY.signature) == ENTRY


def test_processes_that_write_at_once_lose_no_line(cache):
    script = """
import sys
from dataclasses import replace
from onepass.plan import table
from onepass.plan.table import Entry
from onepass.plan.tiles import Tile
entry = Entry("x" * 300, "tile", Tile(512, 2, 1), 1.5, 2.0, 7)
for number in range(400):
    table.keep("a gpu", replace(entry, signature=f"{sys.argv[1]} {number} {entry.signature}"))
"""
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda name: subprocess.run([sys.executable, "-c", script, name]).returncode, "ab"))
    assert done == [0, 0]
    lines = (cache / table.file_name("a gpu")).read_text().splitlines()
    assert len(lines) == 800 and all(Entry.from_line(line) is not None for line in lines)


def test_the_cache_is_the_users_unless_another_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("ONEPASS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "onepass"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "onepass"


@pytest.mark.parametrize("op", OPS)
def test_a_tuned_choice_is_what_calls_take(op):
    case = Case(op, x=BF16, weight=F32)
    inputs = inputs_of(case, 7, 100)
    before = explained(case, inputs)
    centred = op == "layer_norm"
    for direction in ("forward", "backward"):
        signature = tuned.signature(direction, before.problem, centred, 4)
        table.keep(GPU, replace(ENTRY, signature=signature, schedule="split", tile=Tile(64, 1, 1, 2)))
    in_force.renew()
    with in_force.override(few_rows=0):
        assert explained(case, inputs).forward == before.forward, "not under thresholds of a test's own"
    after = explained(case, inputs)
    assert (after.forward.schedule, after.forward.slices) == ("split", 2)
    assert_results(case, inputs)
    other = inputs_of(replace(case, weight=BF16), 7, 100)
    assert explained(replace(case, weight=BF16), other).forward.schedule == "tile", "another problem"


COLS = (64, 100, 128, 384, 512, 768, 1000, 1024, 1001, 2880, 4096, 4099, 5120, 8192, 16384, 44001, 65536, 262144)


@pytest.mark.parametrize("centred", [False, True], ids=["rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("device", [H200, GLUON], ids=["alone", "clusters and Gluon"])
def test_every_candidate_is_a_plan_and_keeps_rows_apart_from_their_number(centred, dtype, device):
    schedules = {"tile": "tile", "split": "split", "stream": "stream"}
    schedules |= {"cluster": "tile" if device.clusters else "split", "odd": "odd", "odd_split": "odd_split"}
    schedules |= {"threads": "tile"}  # which has rows that lie apart
    for cols in COLS:
        align = min(16, cols & -cols)
        problem = Problem(4096, 1, cols, dtype, dtype, dtype)
        forward = forward_candidates(problem, device, centred, align)
        backward = backward_candidates(problem, device, centred, align)
        assert forward[0] == forward_choices.forward_choice(problem, device, centred, align)
        assert backward[0] == backward_plans.backward_choice(problem, device, centred, align)
        assert 2 <= len(forward) <= 100 and 2 <= len(backward) <= 300, cols
        vector = min(16 // dtype.itemsize, align)
        for choice in forward:
            with in_force.force("forward", choice):
                plans = [
                    forward_plans.forward_plan(replace(problem, rows=rows), device, centred, align)
                    for rows in (1, 7, 4095, 4096, 10**6)
                ]
            alone = [of_one_program(plan) for plan in plans]
            kept = {order_of_sums(p, vector) for p in alone}
            assert len(kept) == 1 and plans[-1].schedule == schedules[choice.schedule], (cols, choice, kept)
        turned = replace(problem, turns=16 // dtype.itemsize // vector)
        in_turns = backward_candidates(turned, device, centred, align)
        odd = turns.takes_turns(turned, align) and cols <= 8192
        assert any(choice.schedule == "turns" for choice in in_turns) == odd, cols
        for planned, choice in [*product((problem,), backward), *product((turned,), in_turns)]:
            with in_force.force("backward", choice):
                plan = backward_plans.backward_plan(planned, device, centred, align, True)
            assert plan.schedule == choice.schedule, (cols, choice)


def timed_by(monkeypatch, time_of):
    """In place of a GPU's time, what a function says of the choice that is being tried; and the choices that were."""
    tried = []

    def microseconds(run, flush, count):
        run()
        [choice] = in_force._forced.choices.values()
        tried.append(choice)
        return time_of(choice)

    monkeypatch.setattr(searching, "_microseconds", microseconds)
    monkeypatch.setattr(searching, "FLUSH_BYTES", 1)
    return tried


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_search_keeps_what_is_fastest(op, direction, monkeypatch):
    case = Case(op, weight=F32, bias=F32 if op == "layer_norm" else None)
    inputs = inputs_of(case, 3, 64)
    options = Options(op == "layer_norm", 1e-5)
    candidates = forward_candidates if direction == "forward" else backward_candidates
    every = candidates(explained(case, inputs).problem, INTERPRETER, options.centred, 16)
    choices = [every[0], *every[1 :: len(every) // 2]]  # the planner's own, and some: the interpreter is slow
    monkeypatch.setattr(backward_plans, "_few", lambda *problem: None)  # as if there were more rows
    monkeypatch.setattr(searching, candidates.__name__, lambda *problem: choices)
    tried = timed_by(monkeypatch, lambda choice: 5.0 if choice == choices[-1] else 10.0)
    before = in_force.generation()
    tensors = (inputs.x, inputs.weight, inputs.bias, inputs.residual)
    seen = []
    [found] = searching.search(options, *tensors, (direction,), lambda *step: seen.append(step))
    assert Choice(found.schedule, found.tile) == choices[-1] and set(tried) == set(choices)
    assert (found.us, found.model_us, found.rows) == (5.0, 10.0, 3)
    assert seen == [(direction, number, len(choices)) for number in range(len(choices))]
    assert in_force.generation() != before
    assert_results(case, inputs)
    tried.clear()
    assert searching.search(options, *tensors, (direction,)) == [] and not tried, "it is known"
    assert searching.search(options, *tensors, (direction,), again=True) and tried


def test_a_backward_of_few_rows_is_not_searched(monkeypatch):
    """It is planned by its number of rows, and what won among other schedules would then serve many rows."""
    tried = timed_by(monkeypatch, lambda choice: 1.0)
    x, weight = random(3, 64), random(64)
    assert onepass.explain(x, weight).backward.schedule == "few"
    assert searching.search(Options(False, 1e-6), x, weight, None, None, ("backward",)) == [] and not tried


def test_what_a_search_tries_is_its_threads_own():
    """Else a call of another thread would run by the candidate, or, while kernels are only noted, not at all."""
    x, weight = random(3, 64), random(64)
    problem = onepass.explain(x, weight).problem
    before = in_force.generation(), forward_plans.forward_plan(problem, INTERPRETER, False, 16)

    def elsewhere():
        y = onepass.rms_norm(x, weight)
        return in_force.generation(), forward_plans.forward_plan(problem, INTERPRETER, False, 16), y

    with in_force.force("forward", Choice("stream", Tile(64, 1, 1, block=16))), launch.gather() as noted:
        assert forward_plans.forward_plan(problem, INTERPRETER, False, 16).schedule == "stream"
        with ThreadPoolExecutor(1) as pool:
            generation, plan, y = pool.submit(elsewhere).result()
        assert not noted
    assert (generation, plan) == before
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))


def test_a_search_stays_with_the_planners_choice_unless_it_pays(monkeypatch):
    x, weight = random(3, 64), random(64)
    model = forward_choices.forward_choice(Problem(3, 1, 64, F32, F32, F32), H200, False, 16)
    timed_by(monkeypatch, lambda choice: 10.0 if choice == model else 9.95)
    [found] = searching.search(Options(False, 1e-6), x, weight, None, None, ("forward",))
    assert Choice(found.schedule, found.tile) == model and found.us == found.model_us


def test_candidates_that_cannot_run_are_passed_over(monkeypatch):
    model = forward_choices.forward_choice(Problem(3, 1, 64, F32, F32, F32), H200, False, 16)

    def time_of(choice):
        if choice != model and choice.tile.warps != 1:
            raise RuntimeError("out of resource: shared memory")
        return 10.0 - (choice != model)

    timed_by(monkeypatch, time_of)
    [found] = searching.search(Options(False, 1e-6), random(3, 64), random(64), None, None, ("forward",))
    assert found.us == 9.0 and found.tile.warps == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: onepass.tune(x), "x must be a plain tensor on a CUDA GPU to tune for, not on cpu"),
        (lambda x: onepass.tune(x, op="batch_norm"), "op must be one of 'rms_norm', 'layer_norm', not 'batch_norm'"),
        (lambda x: onepass.tune(x, directions=("up",)), "directions must be of 'forward', 'backward', not 'up'"),
        (lambda x: onepass.tune(x, torch.ones(3)), "weight must have the shape"),
    ],
)
def test_what_cannot_be_tuned_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.randn(4, 64))


@pytest.mark.parametrize(("asked", "variable", "searches"), [(None, None, False), (None, "0", False), (None, "1", True),
                                                            (False, "1", False), (True, None, True)])  # fmt: skip
def test_nothing_is_searched_unless_it_is_asked_for(asked, variable, searches, monkeypatch):
    monkeypatch.delenv("ONEPASS_AUTOTUNE", raising=False)
    if variable is not None:
        monkeypatch.setenv("ONEPASS_AUTOTUNE", variable)
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)

    class OnGpu:
        is_cuda = True

        def numel(self):
            return 1

    assert searching.may_search(Options(False, 1e-6, autotune=asked), OnGpu()) is searches
    assert not searching.may_search(Options(False, 1e-6, autotune=asked), torch.ones(1))
    capturing = True
    assert not searching.may_search(Options(False, 1e-6, autotune=asked), OnGpu())
