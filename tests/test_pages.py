"""Pieces of pages that are filled already."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from onepass import pages
from onepass.pages import Pages, filled

CPU = torch.device("cpu")


@pytest.mark.parametrize(("bits", "value"), [(0, 0), (-1, -1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_pieces_are_filled_and_nobody_elses(monkeypatch, dtype, bits, value):
    monkeypatch.setattr(pages, "PAGE", 256)
    pool = Pages()
    pieces = [pool.piece(torch.empty((), dtype=dtype).expand(size), CPU, bits, 0) for size in (1, 7, 3, 30, 100, 1, 5)]
    assert [(piece.shape, piece.dtype) for piece in pieces] == [((size,), dtype) for size in (1, 7, 3, 30, 100, 1, 5)]
    for number, piece in enumerate(pieces):
        assert piece.is_contiguous() and piece.data_ptr() % 16 == 0
        assert bool((piece == value).all()), "somebody else's was written to"
        piece.fill_(number + 1)
    assert [piece.unique().tolist() for piece in pieces] == [[number + 1] for number in range(len(pieces))]


def test_a_piece_has_the_shape_and_dtype_that_was_asked_for():
    statistic = Pages().piece(torch.empty(3, 5), CPU, -1, 0)
    assert statistic.shape == (3, 5) and statistic.dtype == torch.float32
    assert bool((statistic.view(torch.int32) == -1).all())
    amax = Pages().piece(torch.empty(()), CPU, 0, 0)
    assert amax.shape == () and amax.item() == 0.0


def test_streams_have_pages_of_their_own(monkeypatch):
    """A fill is before what follows on its stream, and not before what another one does."""
    filling = []
    full = torch.full
    monkeypatch.setattr(torch, "full", lambda *given, **how: filling.append(given) or full(*given, **how))
    pool, word = Pages(), torch.empty(1, dtype=torch.int32)
    for stream in (1, 1, 2, 1, 2, 3):
        pool.piece(word, CPU, 0, stream)
    assert len(filling) == 3


def test_a_change_of_one_is_no_change_of_another():
    pool = Pages()
    amax, rstd = pool.piece(torch.empty(()), CPU, 0, 0), pool.piece(torch.empty(4), CPU, 0, 0)
    x = torch.ones(4, requires_grad=True)
    y = x * rstd  # which saves it
    amax.fill_(3.0)
    y.sum().backward()
    assert not torch._C._overlaps(amax, rstd)


def test_a_page_lives_as_long_as_its_pieces(monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 64)
    pool, word = Pages(), torch.empty(8, dtype=torch.int32)
    first = pool.piece(word, CPU, 0, 0)
    page = weakref.ref(pool._pages[word.device, 0, 0][0])
    pool.piece(word, CPU, 0, 0), pool.piece(word, CPU, 0, 0)
    gc.collect()
    assert page() is None, "the page as a tensor is gone"
    assert first.tolist() == [0] * 8, "its memory is not"


@pytest.mark.parametrize("bits", [0, -1])
def test_without_a_gpu_each_is_filled_by_itself(bits):
    like = torch.empty(()).expand(3, 4)
    assert bool((filled(like, CPU, bits, 0).view(torch.int32) == bits).all())
    assert filled(torch.empty((), dtype=torch.int64).expand(5), CPU, bits, 0).tolist() == [bits] * 5
