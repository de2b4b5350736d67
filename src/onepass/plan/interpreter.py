"""Programs that exchange sums in Triton's interpreter, which by itself runs one program after the other.

Those of the split schedule wait for each other, so here each one is a thread. One runs at a time; it hands over to
the next one when it looks into the mailbox (a volatile load), so every run goes the same way.
"""

from __future__ import annotations

import threading
from typing import Any

from triton.runtime import interpreter

#: So many looks into the mailbox in a row, by each program and with nothing published, mean that nobody ever will.
_PATIENCE = 100


class _Ring:
    """Programs in a ring, of which one has its turn."""

    def __init__(self, programs: int) -> None:
        self.alive = list(range(programs))
        self.turns = [threading.Semaphore(0) for _ in range(programs)]
        self.looks = 0
        self.failure: BaseException | None = None

    def hand_over(self, program: int, leaving: bool = False) -> None:
        following = self.alive[(self.alive.index(program) + 1) % len(self.alive)]
        if leaving:
            self.alive.remove(program)
        if following != program:
            self.turns[following].release()
            if not leaving:
                self.turns[program].acquire()

    def look(self, program: int) -> None:
        self.looks += 1
        if self.failure is not None or self.looks > _PATIENCE * len(self.turns):
            raise RuntimeError("the programs of this launch wait for each other for ever")
        self.hand_over(program)


def run_together(function: Any, programs: int, arguments: tuple[Any, ...]) -> None:
    """Run all programs of an interpreted kernel side by side; the first exception of any is raised here."""
    body = function.rewrite()
    builder = interpreter.interpreter_builder
    constexprs = interpreter.GridExecutor(body, function.arg_names, (programs,)).constexprs
    bound = {
        name: value if name in constexprs else interpreter._implicit_cvt(value)
        for name, value in zip(function.arg_names, arguments, strict=True)
    }
    ring = _Ring(programs)

    def program(index: int) -> None:
        ring.turns[index].acquire()
        try:
            builder.set_grid_idx(index, 0, 0)
            body(**bound)
        except BaseException as failure:  # carried over to the caller's thread
            ring.failure = ring.failure or failure
        ring.hand_over(index, leaving=True)

    plain = type(builder)
    scope = interpreter._patch_lang(body)
    builder.set_grid_dim(programs, 1, 1)
    builder.__class__ = _cooperating(plain, ring)
    try:
        threads = [threading.Thread(target=program, args=(index,)) for index in range(programs)]
        for thread in threads:
            thread.start()
        ring.turns[0].release()
        for thread in threads:
            thread.join()
    finally:
        builder.__class__ = plain
        scope.restore()
    if ring.failure is not None:
        raise ring.failure


def _cooperating(plain: Any, ring: _Ring) -> type:
    """The interpreter's builder with a program number for each thread, and with turns."""
    local = threading.local()

    class Builder(plain):
        @property
        def grid_idx(self) -> Any:
            return local.index

        @grid_idx.setter
        def grid_idx(self, index: Any) -> None:
            local.index = index

        def create_masked_load(
            self, ptrs: Any, mask: Any, other: Any, cache: Any, eviction: Any, volatile: bool
        ) -> Any:
            if volatile:
                ring.look(local.index[0])
            return super().create_masked_load(ptrs, mask, other, cache, eviction, volatile)

        def create_atomic_rmw(self, *arguments: Any) -> Any:
            ring.looks = 0
            return super().create_atomic_rmw(*arguments)

    return Builder
