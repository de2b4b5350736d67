"""Where a schedule ends and the next begins, and which tile serves which width: thresholds by name, with reasons."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.plan.backward_thresholds import BackwardThresholds
from onepass.plan.forward_thresholds import ForwardThresholds
from onepass.plan.odd_backward_thresholds import OddBackwardThresholds
from onepass.plan.odd_forward_thresholds import OddForwardThresholds


@dataclass(frozen=True)
class Thresholds(ForwardThresholds, OddForwardThresholds, BackwardThresholds, OddBackwardThresholds):
    """The numbers come from sweeps on an H200, bf16, cold L2; docs/lab-notes.md has the times."""

    #: Elements of an input, forward and backward, from which on a thread keeps them packed: below, registers are not
    #: what limits a program, and widening them again costs (LayerNorm's backward of 4,096 columns, 32 elements: 205 us
    #: against 219). With 64 it pays (RMSNorm's of 16,384, one block: 798 against 1,200); between them was not compared.
    packed_elements: tuple[int, int] = (32, 40)

    #: Stream, where programs cannot share a row: columns that a program takes at a time.
    stream_block: int = 4096
    stream_warps: int = 8
