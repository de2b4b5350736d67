"""The backends: each a name, a probe, and a function that normalizes; adding one touches the table at the end only.

All get the same tensors and the same task: one rounding at the end, the weight in its own dtype, no offset, gradients
of every input. With a residual, x + residual comes back too; whether the sum is normalized before or after it is
rounded is the backend's own convention (eager and Liger: after; Quack and onepass: before), which the gate admits.
With FP8, all get an Fp8 that says how to quantize, and return a Quantized; the sum is normalized before it is rounded.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import onepass
from onepass.fp8 import Fp8, Quantized, definition
from onepass.lab.data.case import FP8_OPS, Case
from onepass.lab.inputs import Inputs, wanted

Outputs = Tensor | tuple[Tensor, ...] | Quantized
#: (x, weight, bias, residual, eps) -> y or (y, sum); bias and residual are None where the operation has none.
#: With FP8 (x, weight, bias, residual, eps, quantize) -> Quantized.
Norm = Callable[..., Any]


class NotSupported(Exception):  # noqa: N818 (it is an answer, and becomes a row that says so)
    """A backend does not do a case; the message says why, for a person."""


@dataclass(frozen=True)
class Backend:
    """`norm(case)` gives the function; it may raise NotSupported. `probe()` says in a sentence what is missing."""

    name: str
    norm: Callable[[Case], Norm]
    probe: Callable[[], str | None] = lambda: None
    gpu_only: bool = False

    def prepare(self, case: Case, inputs: Inputs) -> Callable[[], Outputs]:
        """The call to be checked and timed: the forward without gradients, or the backward alone.

        It has run once when this returns, so that it is compiled and tuned, and what it refuses is known. It returns
        what `wanted(case)` names, in that order or as a Quantized. Raises NotSupported.
        """
        missing = self.probe()
        if missing is not None:
            raise NotSupported(missing)
        if self.gpu_only and not inputs.x.is_cuda:
            raise NotSupported(f"runs on a CUDA GPU only, and this is {inputs.x.device}")
        try:
            call = (_forward if case.direction == "forward" else _backward)(self.norm(case), case, inputs)
            call()
        except NotSupported:
            raise
        except Exception as error:  # whatever a peer raises is its answer
            lines = str(error).strip().splitlines() or ["without a message"]
            raise NotSupported(f"raised {type(error).__name__}: {lines[0]}") from error
        return call


def _forward(norm: Norm, case: Case, inputs: Inputs) -> Callable[[], Outputs]:
    x, weight, bias, residual, eps = inputs.x, inputs.weight, inputs.bias, inputs.residual, case.eps
    quantize = inputs.quantize
    if quantize is None:
        return lambda: norm(x, weight, bias, residual, eps)
    if quantize.amax is not None:
        quantize.amax.zero_()  # what the gate finds in it is then this backend's own
    return lambda: norm(x, weight, bias, residual, eps, quantize)


def _backward(norm: Norm, case: Case, inputs: Inputs) -> Callable[[], Outputs]:
    """The graph is built here, once; the call only runs it backwards."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.tensors().items() if name[0] != "d"}
    outputs = norm(leaves["x"], leaves["weight"], leaves.get("bias"), leaves.get("residual"), case.eps)
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    if not all(result.requires_grad for result in results):
        raise NotSupported("has no backward through autograd")
    arriving = (inputs.dy,) if inputs.dsum is None else (inputs.dy, inputs.dsum)
    into = [leaves[name.removeprefix("d")] for name in wanted(case)]
    return lambda: torch.autograd.grad(results, into, arriving, retain_graph=True)


def _rms_norm(x: Tensor, weight: Tensor, bias: None, residual: None, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, residual: None, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def _add_rms_norm(x: Tensor, weight: Tensor, bias: None, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, eps), total


def _norm_fp8(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, eps: float, quantize: Fp8
) -> Quantized:
    """Any of the three, LayerNorm where there is a bias, then FP8 by its definition.

    In plain operations and fp32: the definition rounds to x's dtype itself, once, where the convention does.
    """
    total = x.float() if residual is None else x.float() + residual.float()
    centred = total if bias is None else total - total.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight.float()
    if bias is not None:
        y = y + bias.float()
    return definition.quantize(y, quantize, x.dtype, residual=None if residual is None else total.to(residual.dtype))


_PYTORCH: dict[str, Any] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
} | dict.fromkeys(FP8_OPS, _norm_fp8)


def _eager(case: Case) -> Norm:
    return _PYTORCH[case.op]


#: All that torch.compile can search for here: mode max-autotune-no-cudagraphs, and over how many programs the rows of a
#: backward are split. What this PyTorch does not know is left out.
SEARCHED: dict[str, Any] = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "triton.mix_order_reduction_autotune_split_size": True,
}


# Two ways, before and after the timing: the same compiled function for the case at hand, and none is kept for long.
@lru_cache(maxsize=4)
def _compiled(case: Case, searched: bool) -> Norm:
    """torch.compile of the eager function, with static shapes, fresh for the case.

    Dynamo keeps what it compiled with a function's code, and gives up after some shapes. torch._dynamo.reset() would
    forget the other way's function too, in the middle of a case; a copy of the code per case and way does not.
    """
    plain = _PYTORCH[case.op]
    code = plain.__code__.replace(co_name=f"{case.op}_{case.rows}x{case.cols}")
    copy = types.FunctionType(code, plain.__globals__, code.co_name)
    known = importlib.import_module("torch._inductor").list_options() if searched else []
    options = {name: value for name, value in SEARCHED.items() if name in known}
    compiled = torch.compile(copy, options=options or None, dynamic=False, fullgraph=True)

    def norm(*arguments: Any) -> Outputs:
        # A backward that is run again and again over one graph may not reuse that graph's own buffers.
        with torch._functorch.config.patch(donated_buffer=False):
            return compiled(*arguments)

    return norm if case.direction == "backward" else compiled


def _liger(case: Case) -> Norm:
    """ "gemma" is Liger's name for one rounding at the end; in_place would write dx over dy."""
    if case.scaling is not None:
        raise NotSupported("Liger's norms have no FP8 outputs")
    ops = importlib.import_module("liger_kernel.ops")
    offset, casting, in_place = 0.0, "gemma", False
    rms, layer, add = (
        getattr(ops, f"Liger{name}Function").apply for name in ("RMSNorm", "LayerNorm", "FusedAddRMSNorm")
    )
    norms: dict[str, Norm] = {
        "rms_norm": lambda x, weight, bias, residual, eps: rms(x, weight, eps, offset, casting, in_place),
        "layer_norm": lambda x, weight, bias, residual, eps: layer(x, weight, bias, eps),
        "add_rms_norm": lambda x, weight, bias, residual, eps: add(x, residual, weight, eps, offset, casting, in_place),
    }
    return norms[case.op]


def _quack(case: Case) -> Norm:
    if case.scaling is not None:
        raise NotSupported("Quack's norms have no FP8 outputs with scales")
    if case.op == "layer_norm":
        if case.direction == "backward":
            raise NotSupported("Quack's LayerNorm has no backward through autograd")
        if (case.weight_dtype or case.dtype) != "float32":
            raise NotSupported(f"Quack's LayerNorm takes float32 weights, not {case.weight_dtype or case.dtype}")
        if case.layout != "dense":
            raise NotSupported("Quack's LayerNorm takes two-dimensional x only")
    quack = importlib.import_module("quack.rmsnorm")
    rmsnorm, layernorm = quack.rmsnorm, quack.layernorm_fwd
    norms: dict[str, Norm] = {
        "rms_norm": lambda x, weight, bias, residual, eps: rmsnorm(x, weight, eps=eps),
        "layer_norm": lambda x, weight, bias, residual, eps: layernorm(x, weight, bias, eps),
        "add_rms_norm": lambda x, weight, bias, residual, eps: rmsnorm(
            x, weight, residual=residual, eps=eps, prenorm=True
        ),
    }
    return norms[case.op]


def _onepass(case: Case) -> Norm:
    return _named(onepass.layer_norm if case.norm == "layer_norm" else onepass.rms_norm, case)


def _named(function: Callable[..., Any], case: Case) -> Norm:
    """The function with what the case has, and no more, each by its name."""
    norms: dict[str, Norm] = {
        "rms_norm": lambda x, weight, bias, residual, eps: function(x, weight, eps=eps),
        "layer_norm": lambda x, weight, bias, residual, eps: function(x, weight, bias=bias, eps=eps),
        "add_rms_norm": lambda x, weight, bias, residual, eps: function(x, weight, residual=residual, eps=eps),
        "rms_norm_fp8": lambda x, weight, bias, residual, eps, quantize: function(
            x, weight, eps=eps, quantize=quantize
        ),
        "layer_norm_fp8": lambda x, weight, bias, residual, eps, quantize: function(
            x, weight, bias=bias, eps=eps, quantize=quantize
        ),
        "add_rms_norm_fp8": lambda x, weight, bias, residual, eps, quantize: function(
            x, weight, residual=residual, eps=eps, quantize=quantize
        ),
    }
    return norms[case.op]


@cache
def _missing(module: str, package: str) -> str | None:
    """Why a peer cannot be used, and what to do; None: it can."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            return f"not installed: pip install {package}"
        return f"installed, but it needs {error.name}: pip install {package}"
    except Exception as error:  # a broken installation may raise anything
        return f"installed, but it cannot be imported: {type(error).__name__}: {error}"
    return None


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("eager", _eager),
        Backend("compile", partial(_compiled, searched=False)),
        Backend("compile-max", partial(_compiled, searched=True)),
        Backend("liger", _liger, partial(_missing, "liger_kernel.ops", "liger-kernel"), gpu_only=True),
        Backend("quack", _quack, partial(_missing, "quack.rmsnorm", "quack-kernels"), gpu_only=True),
        Backend("onepass", _onepass),
    )
}

#: The names of the lab's own, in the order they are shown; "all" stands for them.
NAMES = tuple(BACKENDS)


def available() -> dict[str, str | None]:
    """Every backend of the lab, with None, or a sentence that says what it lacks."""
    return {name: known.probe() for name, known in BACKENDS.items()}


def backends(names: Iterable[str]) -> list[Backend]:
    """The backends of those names, each once, in the order given; "all" stands for all of the lab's own."""
    expanded = [one for name in names for one in (NAMES if name == "all" else [name])]
    return [backend(name) for name in dict.fromkeys(expanded)]


def backend(name: str) -> Backend:
    """One of the lab's own, or a person's: `my_module:function`, importable from the working directory.

    The function is called as `function(x, weight, eps=…)`, with `bias=` too for LayerNorm and `residual=` for the
    residual form. It returns y, or (y, x + residual) with a residual; its backward, where it has one, goes through
    autograd. For an FP8 output it gets `quantize=` too, an Fp8, and returns a Quantized, which has the sum in
    `residual`. Raises ValueError, a sentence, for a name that is nothing.
    """
    if ":" in name:
        return Backend(name, partial(_named, _found(name)))
    if name not in BACKENDS:
        raise ValueError(f"backend must be all, {', '.join(NAMES)} or my_module:function, not {name}")
    return BACKENDS[name]


def _found(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:  # an installed command does not look there by itself
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # it is a person's module and may raise anything
        raise ValueError(f"backend {name}: {module_name} cannot be imported: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"backend {name}: {module_name} has no function {attribute!r}")
    return function
