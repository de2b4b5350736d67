"""What the compiler makes of FP8 outputs for sm_90: that it makes it, and without spilling where it counts."""

from pathlib import Path

import pytest
import torch

from compiled.test_machine_code import row_layouts
from onepass.checks import Options, checked
from onepass.fp8 import Fp8
from onepass.fp8.forward import QuantizedForward
from onepass.plan import launch, row_counts
from onepass.plan.device import Device

KINDS = ["token", "block", "mx", "tensor"]


def quantized_forward(shape: tuple[int, int], dtype: torch.dtype, fp8: Fp8) -> QuantizedForward:
    x = torch.empty(shape, dtype=dtype, device="meta")
    norm, problem = checked(Options(False, 1e-6), x, torch.empty(shape[1], dtype=dtype, device="meta"), None, None)
    return QuantizedForward(norm, problem, x, None, fp8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("cols", [200, 520])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_laid_over_the_same_threads_whatever_the_number_of_rows(kind, cols, dtype, compiled):
    """It is the first launch that sums."""
    for also in (False, True) if dtype == torch.bfloat16 else (False,):
        layouts = []
        for rows in (1, 4096):
            call = quantized_forward((rows, cols), dtype, Fp8(kind, also_unquantized=also))
            first = call._steps(call.align(True), kind == "tensor")[0]
            layouts.append(row_layouts(first[-1].compiled(call.place.device)))
        assert layouts[0] == layouts[1]


@pytest.mark.parametrize(
    ("columnwise", "shape"), [(False, (4096, 4096)), (False, (64, 131072)), (False, (517, 1001)), (True, (4096, 4096))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_compiles(
    kind: str, columnwise: bool, shape: tuple[int, int], h200: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    monkeypatch.setattr(row_counts, "row_counts_apart", lambda *_: ())  # which change a tile, and no code
    call = quantized_forward(shape, torch.bfloat16, Fp8(kind, columnwise=columnwise))
    with launch.gather() as kernels:
        call._prepare(True, columnwise or kind == "tensor")
    for kernel in kernels:
        launch.compile_to_disk(*kernel, (9, 0))
    assert len(list((tmp_path / "kernels").iterdir())) >= 1
