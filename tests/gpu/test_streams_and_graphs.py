"""Launches go where PyTorch says: the current stream, a graph under capture, the tensors' own device."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import onepass
from gpu.cases import PLAIN, RESIDUAL, Case, Tensors, differentiated, on_schedule, ours, tensors_of
from gpu.exact import assert_same_bits
from onepass import pages

CASES = [PLAIN["one row"], PLAIN["split"], RESIDUAL["split"]]
#: About ten milliseconds of a GPU's clock: so long a stream is kept busy before the work in question.
BUSY_CYCLES = 20_000_000


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, result in got.items():
        assert_same_bits(result, expected[name])


def test_split_rows_on_two_streams_do_not_disturb_each_other() -> None:
    """Each launch has programs that wait for each other; two such launches must neither mix up nor block."""
    cases = [PLAIN["split"], RESIDUAL["split"]]
    inputs = [tensors_of(case, seed=10 * number) for number, case in enumerate(cases)]
    expected = []
    for case, tensors in zip(cases, inputs, strict=True):
        with on_schedule(case, tensors):
            expected.append(differentiated(ours(case), tensors))
    torch.cuda.synchronize()

    def repeat(case: Case, tensors: Tensors) -> list[dict[str, Tensor]]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            results = [differentiated(ours(case), tensors) for _ in range(8)]
        stream.synchronize()
        return results

    with ThreadPoolExecutor(len(cases)) as pool:
        running = [pool.submit(repeat, case, tensors) for case, tensors in zip(cases, inputs, strict=True)]
        for future, right in zip(running, expected, strict=True):
            for result in future.result():
                assert_same(result, right)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_work_waits_for_the_stream_it_was_given(case: Case) -> None:
    """On any other stream the kernels would run before their inputs are there."""
    tensors = tensors_of(case)
    with on_schedule(case, tensors):
        expected = differentiated(ours(case), tensors)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            late = Tensors(*(None if tensor is None else torch.full_like(tensor, torch.nan) for tensor in tensors))
            torch.cuda._sleep(BUSY_CYCLES)
            for slot, tensor in zip(late, tensors, strict=True):
                if slot is not None:
                    slot.copy_(tensor)
            got = differentiated(ours(case), late)
        stream.synchronize()
    assert_same(got, expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_captured_step_computes_with_new_inputs_at_every_replay(case: Case) -> None:
    slots = tensors_of(case)
    with on_schedule(case, slots):
        warmup = torch.cuda.Stream()
        warmup.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warmup):
            for _ in range(2):
                differentiated(ours(case), slots)
        torch.cuda.current_stream().wait_stream(warmup)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = differentiated(ours(case), slots)
        for replay in range(10):
            fresh = tensors_of(case, seed=100 * (replay + 1))
            for slot, tensor in zip(slots, fresh, strict=True):
                if slot is not None:
                    slot.copy_(tensor)
            graph.replay()
            assert_same(captured, differentiated(ours(case), fresh))


def test_every_call_has_words_of_its_own_when_pages_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that programs share, and an amax, from pages of which each is good for a few calls."""
    monkeypatch.setattr(pages, "PAGE", 16384)
    monkeypatch.setattr(pages, "_pages", pages.Pages())
    case = PLAIN["split"]
    tensors = tensors_of(case)
    with on_schedule(case, tensors):
        expected = differentiated(ours(case), tensors)
        for magnitude in range(12, 0, -1):
            assert_same(differentiated(ours(case), tensors), expected)
            x = torch.full((64, 256), float(magnitude), device="cuda")
            assert onepass.quantize(x, onepass.Fp8("tensor")).amax.item() == magnitude


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_tensors_on_a_second_gpu_are_computed_there() -> None:
    case = PLAIN["split"]
    tensors = tensors_of(case)
    with on_schedule(case, tensors):
        expected = differentiated(ours(case), tensors)
        away = Tensors(*(None if tensor is None else tensor.to("cuda:1") for tensor in tensors))
        got = differentiated(ours(case), away)
    assert all(result.device == torch.device("cuda:1") for result in got.values())
    assert_same({name: result.to("cuda:0") for name, result in got.items()}, expected)
