"""onepass: RMSNorm and LayerNorm for PyTorch that read memory once."""

from onepass.explain import explain
from onepass.fp8 import Fp8, Quantized
from onepass.functional import layer_norm, quantize, rms_norm, transpose_fp8
from onepass.modules import LayerNorm, RMSNorm
from onepass.tune import tune

__version__ = "0.1.0"
__all__ = [
    "Fp8",
    "LayerNorm",
    "Quantized",
    "RMSNorm",
    "explain",
    "layer_norm",
    "quantize",
    "rms_norm",
    "transpose_fp8",
    "tune",
]
