"""FP8 outputs by rows on a real GPU, bit by bit against the definition: every kind on every schedule."""

from dataclasses import replace

import pytest

import onepass
from gpu.exact import assert_same_bits, random_rows, random_weight, ulps
from gpu.fp8_kinds import BF16, KINDS, asked, assert_quantized_as_defined
from onepass.plan import forward_plans
from onepass.plan.device import device_of

#: Rows and columns, and the schedule that these take where programs may share a row.
SHAPES = {(700, 4096): "tile", (300, 192): "tile", (129, 1001): "tile", (5, 32768): "tile", (133, 32768): "stream"}
WIDE = {(5, 131072): "split"}
#: Of these a plain output is made by the same threads.
AS_PLAIN = ((300, 192), (129, 1001))


@pytest.mark.parametrize("shape", [*SHAPES, *WIDE], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_bits_of_the_definition(kind: str, shape: tuple[int, int]) -> None:
    x, weight = random_rows(*shape, dtype=BF16), random_weight(shape[1], dtype=BF16)
    problem = replace(onepass.explain(x, weight).problem, quantized="static")
    plan = forward_plans.forward_plan(problem, device_of(x.device), False, min(16, shape[1] & -shape[1]))
    assert plan.schedule == (SHAPES | WIDE)[shape], str(plan)
    assert plan.affine_first == (shape in ((700, 4096), *WIDE))
    # Of the former 517 ask for the weight after the row.
    for rows in (517, 700) if shape == (700, 4096) else shape[:1]:
        q = onepass.rms_norm(x[:rows], weight, quantize=asked(kind))
        assert_quantized_as_defined(q, asked(kind))
    plain = onepass.rms_norm(x, weight)
    if q.block is None and shape in AS_PLAIN:
        assert_same_bits(q.unquantized, plain)
    # Elsewhere an FP8 output has a tile of its own, or blocks as wide as its groups: another order of sums, and another
    # last bit here and there.
    apart = ulps(q.unquantized, plain)
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.01
