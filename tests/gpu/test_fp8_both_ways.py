"""FP8 both ways on a real GPU: the transpose by its definition, and rows as they are without it."""

import pytest
import torch

import onepass
from gpu.exact import random_rows, random_weight
from gpu.fp8_kinds import (
    KINDS,
    asked,
    assert_both_ways_as_defined,
    assert_quantized_as_defined,
    assert_same_but_for_a_nans_bits,
)
from onepass import Fp8
from onepass.fp8 import definition
from onepass.plan import in_force
from onepass.plan.device import device_of


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_have_the_bits_of_the_definition(kind: str) -> None:
    assert_both_ways_as_defined(kind, (128, 1024))


@pytest.mark.parametrize("norm", [onepass.rms_norm, onepass.layer_norm])
@pytest.mark.parametrize("rows", [1, 127, 130, 131, 258])
def test_no_nan_is_taken_for_a_missing_statistic(rows: int, norm) -> None:
    """Columns wait for the rows' statistics, whose bits are all ones until they are there."""
    x, weight = random_rows(rows, 256, dtype=torch.float32), random_weight(256, dtype=torch.float32)
    x[rows // 2] = float("inf")
    x.view(torch.int32)[-1, 3] = -1
    x.view(torch.int32)[0] = -1
    q = norm(x, weight, quantize=asked("block", columnwise=True))
    assert_same_but_for_a_nans_bits(q, definition.quantize(q.unquantized, asked("block", columnwise=True)))


#: Kinds and shapes, and arithmetic, of which the first one is also for other weights.
STAGED = [*((kind, (128, 4096)) for kind in ("block, te", "block, deepgemm", "block, vllm"))]
STAGED += [("block", shape) for shape in ((384, 5120), (256, 8192), (128, 3200))]
ARITHMETIC = {"multiplier": False, "inverse": True, "scale": False, "reciprocal": True}


def staged(x: torch.Tensor, weight: torch.Tensor | None, fp8: Fp8, **options) -> onepass.Quantized:
    """From shared memory, as many rows would be; and by the other kernel, with the same bits."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        with in_force.override(staged_from=0):
            q = onepass.rms_norm(x, weight, quantize=fp8, **options)
        with in_force.override(staged_from=1 << 30):
            other = onepass.rms_norm(x, weight, quantize=fp8, **options)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages()]
    assert {"staged_forward", "columnwise_forward"} <= set(names), names
    for name in ("data", "scale", "data_t", "scale_t", "unquantized"):
        got, expected = getattr(q, name), getattr(other, name)
        if got is not None:
            one, two = (tensor.contiguous().reshape(-1).clone().view(torch.uint8) for tensor in (got, expected))
            assert torch.equal(one, two), name
    return q


@pytest.fixture
def gluon() -> None:
    if not device_of(torch.device("cuda", 0)).gluon:
        pytest.skip("kernels/staged.py is not for this Triton")


@pytest.mark.usefixtures("gluon")
@pytest.mark.parametrize(("kind", "shape"), STAGED, ids=str)
def test_from_shared_memory_it_has_the_bits_of_the_definition(kind: str, shape: tuple[int, int]) -> None:
    x, weight = random_rows(*shape, dtype=torch.bfloat16), random_weight(shape[1], dtype=torch.bfloat16)
    assert_quantized_as_defined(staged(x, weight, asked(kind, columnwise=True)), asked(kind, columnwise=True))


@pytest.mark.usefixtures("gluon")
@pytest.mark.parametrize("arithmetic", ARITHMETIC)
def test_from_shared_memory_it_has_the_bits_of_the_other_kernel(arithmetic: str) -> None:
    x, weight = random_rows(256, 4096, dtype=torch.float16), random_weight(4096, dtype=torch.float32)
    x[3], x[5, 7], x[6, 9], x[:, 130] = 0.0, float("inf"), float("nan"), 0.0
    rounds_up = ARITHMETIC[arithmetic]
    fp8 = Fp8(
        "block", "e5m2" if rounds_up else "e4m3", columnwise=True, arithmetic=arithmetic, power_of_two=rounds_up,
        upper_bound=2.0 if rounds_up else None, round_first=False,
    )  # fmt: skip
    staged(x, weight, fp8)
    if arithmetic == "multiplier":
        staged(x, None, fp8)
        staged(x, weight, fp8, offset=1.0, cast="llama")
        staged(torch.cat([x, x], 1)[:, 4096:], weight.half(), fp8, cast="none")


@pytest.mark.usefixtures("gluon")
def test_many_rows_are_staged_and_one_more_changes_no_bits() -> None:
    x, weight = random_rows(4097, 4096, dtype=torch.bfloat16), random_weight(4096, dtype=torch.bfloat16)
    fp8 = Fp8("block", columnwise=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        many, more = (onepass.rms_norm(x[:rows], weight, quantize=fp8) for rows in (4096, 4097))
        torch.cuda.synchronize()
    assert {"staged_forward", "columnwise_forward"} <= {event.key for event in profile.key_averages()}
    assert torch.equal(many.data.view(torch.uint8), more.data[:4096].view(torch.uint8))
    assert torch.equal(many.scale, more.scale[:4096])
    assert many.data_t is not None and more.data_t is not None
    assert torch.equal(many.data_t.view(torch.uint8), more.data_t[:, :4096].view(torch.uint8))
