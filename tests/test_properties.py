"""Calls drawn at random: whatever shape, dtypes and options, the reference is right."""

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, given, settings

from cases import BF16, F16, F32, SCHEDULES, Case, explained, inputs_of, planned, random
from oracle import assert_results

DTYPES = st.sampled_from([F32, BF16, F16])
#: Outputs are poisoned by a fixture that holds for a whole test; that suits every example.
CHECKS = settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def cases(draw):
    op = draw(st.sampled_from(["rms_norm", "layer_norm"]))
    casts = ["output", "llama", "t5", "gemma"] + (["none"] if op == "rms_norm" else [])
    options = {
        "cast": draw(st.sampled_from(casts)),
        "offset": draw(st.sampled_from([0.0, 1.0, -0.5])),
        "eps": draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
        "round_residual": draw(st.booleans()),
    }
    for name in ("out_dtype", "residual_dtype"):
        dtype = draw(st.none() | DTYPES)
        if dtype is not None:
            options[name] = dtype
    return Case(
        op,
        x=draw(DTYPES),
        weight=draw(st.none() | DTYPES),
        bias=None if options["cast"] == "t5" else draw(st.none() | DTYPES),
        residual=draw(st.none() | DTYPES),
        options=options,
    )


@CHECKS
@given(
    case=cases(),
    leading=st.lists(st.integers(0, 4), max_size=3),
    cols=st.integers(2, 160),
    schedule=st.sampled_from(list(SCHEDULES)),
    seed=st.integers(0, 2**16),
)
def test_any_call_gives_what_is_defined(case, leading, cols, schedule, seed):
    torch.manual_seed(seed)
    inputs = inputs_of(case, *leading, cols)
    with planned(schedule):
        assert_results(case, inputs)


@CHECKS
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(2, 70)),
    starts=st.tuples(*[st.integers(0, 1)] * 4),
    steps=st.tuples(*[st.integers(1, 2)] * 3),
    order=st.permutations([0, 1, 2]),
    per_head=st.booleans(),
    schedule=st.sampled_from(list(SCHEDULES)),
)
def test_any_strides_give_what_is_defined(shape, starts, steps, order, per_head, schedule):
    case = Case("layer_norm", bias=F32, per_head=per_head)
    sizes = [start + size * step for start, size, step in zip(starts, shape, (*steps, 1), strict=True)]
    view = random(*sizes)[tuple(slice(start, None, step) for start, step in zip(starts, (*steps, 1), strict=True))]
    inputs = inputs_of(case, x=view.permute(*order, 3))
    with planned(schedule):
        plan = explained(case, inputs)
        assert plan.problem.rows * plan.problem.lanes == inputs.x.numel() // inputs.x.shape[-1]
        assert_results(case, inputs)
