"""Which of three roads a call takes.

    DIRECT      plain CUDA tensors in eager mode: cached launches with raw pointers
    OPS         torch.compile, torch.export, tensor subclasses, dispatch modes: torch.library ops
    REFERENCE   every other device, and functorch transforms: plain PyTorch

With TRITON_INTERPRET=1 in the environment, CPU tensors take the kernels' roads too, in Triton's interpreter.
"""

from __future__ import annotations

import os
from enum import Enum

import torch
from torch import Tensor

Route = Enum("Route", ["DIRECT", "OPS", "REFERENCE"])
DIRECT, OPS, REFERENCE = Route

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_PLAIN = (Tensor, torch.nn.Parameter)


def route_of(x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None) -> Route:
    if not isinstance(x, Tensor) or not (x.is_cuda or (INTERPRETED and x.device.type == "cpu")):
        return REFERENCE
    if torch.compiler.is_compiling():
        return OPS
    if torch._C._are_functorch_transforms_active():
        return REFERENCE
    for tensor in (x, weight, bias, residual):
        if tensor is not None and type(tensor) not in _PLAIN and isinstance(tensor, Tensor):
            return OPS
    return OPS if torch._C._len_torch_dispatch_stack() else DIRECT
