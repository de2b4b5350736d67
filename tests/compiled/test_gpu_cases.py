"""The schedules that the GPU tests expect of their problems are those that an H200 is planned, which takes none."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compiled.conftest import H200
from onepass.plan import device
from onepass.route import DIRECT


@pytest.fixture
def cases(h200: object, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of the GPU tests, as they would be there; tensors without memory have kernels too."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=H200.sms))
    monkeypatch.setattr(device, "device_of", lambda _: H200)
    monkeypatch.setattr(sys.modules["onepass.explain"], "route_of", lambda *_: DIRECT)
    from gpu import cases

    return cases


def tensors_of(cases: Any, case: Any) -> Any:
    def of(shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor | None:
        return None if dtype is None else torch.empty(shape, dtype=dtype, device="meta")

    affine = case.shape[-2:] if case.per_head else case.shape[-1:]
    x, residual, bias = of(case.shape, case.dtype), of(case.shape, case.residual), case.dtype if case.bias else None
    return cases.Tensors(x, of(affine, case.dtype), of(affine, bias), residual, x, None)


def test_every_problem_of_the_gpu_tests_is_planned_as_they_expect(cases):
    wrong = []
    for case in cases.CASES:
        try:
            with cases.on_schedule(case, tensors_of(cases, case)):
                pass
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    assert len(cases.CASES) > 100 and not wrong, "\n".join(wrong)
