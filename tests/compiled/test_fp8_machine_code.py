"""What the compiler makes of FP8 outputs for sm_90: that it makes it, and without spilling where it counts."""

from pathlib import Path

import pytest
import torch

from compiled.test_machine_code import H200
from onepass.checks import Options, checked
from onepass.fp8 import Fp8
from onepass.fp8.forward import QuantizedForward
from onepass.plan import launch

KINDS = ["token", "block", "mx", "tensor"]


@pytest.mark.parametrize("shape", [(4096, 4096), (64, 131072), (517, 1001)])
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_compiles(
    kind: str, columnwise: bool, shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onepass import forward
    from onepass.fp8 import forward as quantized

    for module in (forward, quantized):
        monkeypatch.setattr(module, "device_of", lambda device: H200)
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(shape[1], dtype=torch.bfloat16, device="meta")
    norm, problem = checked(Options(False, 1e-6), x, weight, None, None)
    call = QuantizedForward(norm, problem, x, None, Fp8(kind, columnwise=columnwise))
    with launch.gather() as kernels:
        call._prepare(True, columnwise)
    for kernel in kernels:
        launch.compile_to_disk(*kernel, (9, 0))
    assert len(list((tmp_path / "kernels").iterdir())) >= 1
