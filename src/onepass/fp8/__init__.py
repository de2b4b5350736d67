"""FP8 outputs: what to make (`Fp8`) and what comes back (`Quantized`)."""

from onepass.fp8.result import Quantized
from onepass.fp8.spec import Fp8

__all__ = ["Fp8", "Quantized"]
