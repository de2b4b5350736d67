"""Memory that is filled already, of which each call gets a piece.

Kernels that wait for each other, or take a maximum over all programs, begin from words of known bits. To fill a few of
these is a launch of its own, of about a microsecond, half of what a small norm takes. So a page is filled at once, and
its pieces are handed out, each of them once, to the calls of one stream: these come after the fill, as they must.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

#: Bytes of a page, and of the largest piece: beside what a call moves that needs more, a fill is little.
PAGE, LARGEST = 1 << 20, 1 << 17
#: Pieces begin at multiples of so many words of four bytes.
UNIT = 4


class Pages:
    """The pages that pieces come from at present: one for each stream of a device, and for each of the two fills."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: dict[tuple[torch.device, int, int], tuple[Tensor, int]] = {}

    def piece(self, like: Tensor, device: torch.device, bits: int, stream: int) -> Tensor:
        """As `filled`, whatever the size."""
        words = like.numel() * like.itemsize // 4
        key = device, stream, bits
        with self._lock:
            page, begin = self._pages.get(key, (None, 0))
            if page is None or begin + words > len(page):
                page, begin = torch.full((max(PAGE // 4, words),), bits, dtype=torch.int32, device=device), 0
            self._pages[key] = page, begin + -(-words // UNIT) * UNIT
        # With a storage of its own, which keeps the page alive: a view would share the page's version with all others,
        # so that a change of one by its user would be taken for a change of what autograd has saved.
        storage = page.untyped_storage()[4 * begin : 4 * (begin + words)]
        return torch.empty(0, dtype=like.dtype, device=device).set_(storage, 0, like.shape, ())


_pages = Pages()


def filled(like: Tensor, device: torch.device, bits: int, stream: int, lasting: bool = True) -> Tensor:
    """A dense tensor of that shape and dtype, of four bytes or eight, for a call on `stream`, which is current.

    `bits` is 0, or -1 for a tensor of nothing but ones. What a graph captures is filled at each of its replays.
    `lasting`: a page may be kept.
    """
    paged = lasting and device.type == "cuda" and like.numel() * like.itemsize <= LARGEST
    if paged and not torch.cuda.is_current_stream_capturing():
        return _pages.piece(like, device, bits, stream)
    whole = torch.int32 if like.itemsize == 4 else torch.int64
    return torch.full(like.shape, bits, dtype=whole, device=device).view(like.dtype)
