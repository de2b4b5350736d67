"""Problem to Plan: which schedule, which tile, how many programs.

What is chosen by width alone is a Choice: from the table of what was tuned (table.py), else by the thresholds
(thresholds.py), which are the model for every width and GPU that nobody tuned. The number of rows then makes a Plan
of it.

The forward is batch-invariant: schedule, threads a row and elements a thread follow from the columns, dtypes and
alignment alone. The row count chooses how many rows a program takes and how many programs there are, nothing else,
so a row's bits never depend on its company.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from onepass.plan import table
from onepass.plan.device import Device
from onepass.plan.thresholds import Thresholds, Tile
from onepass.spec import Problem


@dataclass(frozen=True)
class Plan:
    """One launch: `programs` programs of `warps` warps, each with `blocks` blocks of `rows` × `block` elements."""

    # "tile", "split" or "stream"; "few", "turns" and "ring" for a backward of few rows, of odd ones, and of those that
    # programs share, from shared memory; "columnwise" and "staged" for FP8 both ways
    schedule: str
    rows: int
    block: int
    warps: int
    programs: int
    blocks: int = 1  # that a program holds at a time: a tile's row, side by side
    stages: int = 1  # loads in flight, in loop iterations
    slices: int = 1  # programs that share a row
    registers: int | None = None  # a thread's limit, where more programs are worth it, or must run at once
    as_walked: bool = False  # a tile for few rows, whose sums have the order that a walk would give them
    unit: int = 1  # columns that programs which share a row take in turn (kernels/cluster.py)
    ahead: int | None = (
        None  # blocks of weight and bias that are asked for with the row, before they are needed; None: all
    )
    affine_first: bool = False  # weight and bias are asked for before the row, and not when it has come
    together: bool = False  # all programs must run at the same time

    @property
    def elements(self) -> int:
        """That a thread holds of each input."""
        return self.rows * self.block * self.blocks // (32 * self.warps)

    def is_even(self, cols: int) -> bool:
        """Whether its blocks fill a row."""
        return self.slices * self.blocks * self.block == cols

    def __str__(self) -> str:
        beside = f" x {self.blocks}" if self.blocks > 1 else ""
        share = f", {self.slices} programs a row" if self.slices > 1 else ""
        staged = f", {self.stages} stages" if self.stages > 1 else ""
        return (
            f"{self.schedule}: {self.rows} x {self.block:,}{beside} tile, {self.warps} warps, "
            f"{self.programs:,} programs{share}{staged}"
        )


@dataclass(frozen=True)
class Choice:
    """How the rows of a problem are worked on, however many they are."""

    # "tile", "turns", "split", "ring" or "stream"; "cluster" for a tile whose rows are always shared
    schedule: str
    tile: Tile


#: The most programs that form a cluster, on every GPU that has them, and registers of a thread.
CLUSTER, REGISTERS = 8, 255

_thresholds = Thresholds()
_overridden = False
_generation = 0
_generations = itertools.count(1)


class _Forced(threading.local):
    """What a search tries, by direction, and the generation it makes. Its thread's own: others plan as ever."""

    def __init__(self) -> None:
        self.choices: dict[str, Choice] = {}
        self.generation: int | None = None


_forced = _Forced()


def thresholds() -> Thresholds:
    return _thresholds


def generation() -> int:
    """Which set of thresholds and tuned choices is in force: whoever keeps plans keeps them under this number."""
    return _generation if _forced.generation is None else _forced.generation


def renew() -> None:
    """Plans that were made so far are no longer those that would be made."""
    global _generation
    _generation = next(_generations)


@contextmanager
def override(**changes: object) -> Iterator[Thresholds]:
    """Plan with other thresholds for a while: for tests that aim at one schedule, and for measurements."""
    global _thresholds, _generation, _overridden
    before = _thresholds, _generation, _overridden
    _thresholds = replace(_thresholds, **changes)  # type: ignore[arg-type]
    _generation, _overridden = next(_generations), True  # and tuned choices do not count
    try:
        yield _thresholds
    finally:
        _thresholds, _generation, _overridden = before


@contextmanager
def force(direction: str, choice: Choice) -> Iterator[None]:
    """Plan by this choice for a while, in this thread: for a search."""
    before = _forced.choices, _forced.generation
    _forced.choices, _forced.generation = before[0] | {direction: choice}, next(_generations)
    try:
        yield
    finally:
        _forced.choices, _forced.generation = before


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def forward_plan(problem: Problem, device: Device, centred: bool, align: int) -> Plan:
    choice = _tuned("forward", problem, device, centred, align) or forward_choice(problem, centred, align)
    tile = choice.tile
    if choice.schedule == "tile":
        plan = _tiles(problem, _batch_invariant(problem, tile, align))
        shared = _shared(problem, device, plan, align)
        if shared.slices > 1:
            return shared
        if tile.late is None:
            return _affine_first(problem, device, plan, centred, align)
        return _late(problem, device, tile, plan, centred)
    if choice.schedule == "stream":
        return _held_or_walked(problem, device, tile, centred, align)
    if choice.schedule == "cluster":
        if device.clusters:
            return _clustered(problem, tile)
        tile = _thresholds.summed_slice
    resident = device.sms * (tile.programs_per_sm or 0)
    if problem.walked or not device.cooperative or cdiv(problem.cols, _slice(problem, tile)) > resident:
        return stream_plan(problem)
    return _sliced(problem, device, tile)


def _held_or_walked(problem: Problem, device: Device, tile: Tile, centred: bool, align: int) -> Plan:
    """Rows that are walked where they are many; few of them are held, all their loads in flight at once.

    Either way a thread has the same elements, and adds them up in the same order, so a row's bits are the same.
    """
    t, block, rows = _thresholds, _block(tile, problem), problem.rows * problem.lanes
    if rows <= device.sms * t.held_per_sm:
        held = Plan("tile", 1, block, tile.warps, rows, cdiv(problem.cols, block), as_walked=True)
        held = _shared(problem, device, held, align)
        # What is asked for early: the row, or both that make it and their sum, and weight and bias.
        row = problem.x.itemsize if problem.residual is None else 4 + problem.residual.itemsize
        column = row + itemsize(problem.weight) + itemsize(problem.bias)
        registers = held.elements * column // 4 + t.registers_beside[centred]
        if registers <= min(REGISTERS, device.registers // (32 * held.warps)):
            return held
    return Plan("stream", 1, block, tile.warps, rows)


def _clustered(problem: Problem, tile: Tile) -> Plan:
    """A cluster a row, however many there are."""
    rows, block = problem.rows * problem.lanes, tile.block or tile.cols
    blocks = cdiv(problem.cols, block * CLUSTER)
    return Plan("tile", 1, block, tile.warps, rows * CLUSTER, blocks, slices=CLUSTER, unit=block)


def _slice(problem: Problem, tile: Tile) -> int:
    """The columns that a program has of a row which it shares: whole blocks, and as many bytes of every dtype."""
    block = _block(tile, problem)
    return block * max(1, tile.cols * 2 // _held(problem) // block)


def _sliced(problem: Problem, device: Device, tile: Tile) -> Plan:
    """A program for each slice of each row. Weight and bias are asked for late, unless programs are few."""
    block, columns = _block(tile, problem), _slice(problem, tile)
    slices = cdiv(problem.cols, columns)
    plan = Plan("split", 1, block, tile.warps, problem.rows * problem.lanes * slices, columns // block, slices=slices)
    if tile.late is None or plan.programs <= device.sms * tile.late:
        return replace(plan, affine_first=True)
    return replace(plan, ahead=min(plan.blocks, tile.ahead), registers=tile.registers)


def _held(problem: Problem) -> int:
    """Bytes of an element, as a forward holds it: a sum with the residual is in fp32."""
    return problem.x.itemsize if problem.residual is None else 4


def _late(problem: Problem, device: Device, tile: Tile, plan: Plan, centred: bool) -> Plan:
    """The plan, with weight and bias asked for late where more programs can then run at once, and there are more."""
    if tile.late is None or problem.quantized or plan.programs <= device.sms * tile.late:
        return plan
    # A row in fp32, as a sum with the residual is, leaves no room for what is asked for ahead.
    if problem.residual is not None or (centred and problem.x.itemsize == 4):
        return replace(plan, ahead=0)
    return replace(plan, ahead=tile.ahead, registers=tile.registers)


def _affine_first(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan, with weight and bias asked for before the row where that is faster."""
    t = _thresholds
    elements = problem.rows * problem.lanes * problem.cols
    affine = problem.weight is not None or problem.bias is not None
    many = problem.cols >= t.affine_first_columns[centred] and elements > device.sms * t.affine_first_elements
    single = centred and align == 1
    given = problem.quantized == "static" and problem.residual is not None
    return replace(plan, affine_first=True) if affine and many and not single and not given else plan


def _shared(problem: Problem, device: Device, plan: Plan, align: int) -> Plan:
    """The plan for a program a row or, where wide rows are few, for a cluster of programs that have its warps between
    them. Either way a row lies over the same threads, and its bits are the same.
    """
    t = _thresholds
    widest = plan.as_walked or plan.blocks * plan.block > t.shared_widest_from
    few = problem.rows * problem.lanes <= (t.shared_widest_rows if widest else t.shared_rows)
    if not device.clusters or not few or plan.rows > 1 or plan.warps < t.shared_warps:
        return plan
    # The compiler must lay a row out by vectors of a known width: tensors of other widths may change it. Groups of
    # columns would have to lie in one program, and two launches to agree on what the first leaves in the L2.
    sizes = {dtype.itemsize for dtype in (problem.x, problem.y, problem.weight, problem.residual, problem.sum) if dtype}
    if (
        align < 16 // problem.x.itemsize
        or len(sizes) > 1
        or problem.group > 1
        or problem.quantized in ("tensor", "amax")
    ):
        return plan
    vector = min(_vector(problem, align), plan.block // (32 * plan.warps))
    return replace(
        plan, block=plan.block // CLUSTER, warps=plan.warps // CLUSTER, programs=plan.programs * CLUSTER,
        slices=CLUSTER, unit=32 * vector,
    )  # fmt: skip


def forward_choice(problem: Problem, centred: bool, align: int) -> Choice:
    """By the thresholds."""
    t = _thresholds
    if _piece(problem.x, align) <= 4:
        odd = _fitting(t.odd_centred_forward_tiles if centred else t.odd_forward_tiles, problem.cols)
        if odd is not None:
            return Choice("tile", odd)
    held = _held(problem)
    if problem.quantized and held == 2 and not centred and align >= 8 and problem.cols >= t.quantized_from:
        tiles = {"delayed": t.merged_tiles, "token": t.row_scaled_tiles, "amax": t.amax_tiles}.get(
            problem.quantized, t.quantized_tiles
        )
        tile = _fitting(tiles if problem.group == 1 else t.grouped_tiles, problem.cols)
        if tile is not None:
            return Choice("tile", _snug(tile, problem.cols, align))
    columns, piece = problem.cols * held // 2, _piece(problem.x, align)
    tile = _fitting(t.centred_forward_tiles if centred else t.forward_tiles, columns)
    plain = problem.residual is None and not problem.quantized
    wider_weight = itemsize(problem.weight) > held and plain and not centred and piece == 16
    if wider_weight and t.wider_weight_from <= columns <= t.wider_weight_tile.cols:
        tile = t.wider_weight_tile
    single = piece == 2 or (centred and plain and piece == problem.x.itemsize)
    if single and plain and problem.cols >= t.single_wide_from[centred]:
        single_tile = _fitting(t.single_centred_tiles if centred else t.single_tiles, columns)
        if single_tile is not None:
            return Choice("tile", single_tile)
        if centred:
            return Choice("split", _forward_slice(problem, centred, align))
    if tile is None and centred and piece > problem.x.itemsize and not problem.quantized:
        tile = _fitting(t.wide_centred_tiles, columns)
    if tile is None and not centred and held == 4:
        tile = _fitting((t.wide_forward_tile,), columns)
    if tile is None and not centred and held == 2 < piece < 16 and plain:
        tile = _fitting((t.wide_odd_tile,), columns)
    if tile is None and not centred and piece == 16 and plain:
        as_it_is = _fitting(t.plain_tiles, columns) if held == 2 else None
        if as_it_is is not None:
            return Choice("tile", as_it_is)
        tile = _fitting((t.wide_plain_tile,), columns) if columns >= t.wide_plain_from else None
        if columns > t.wide_plain_tile.cols:
            return Choice("split", _forward_slice(problem, centred, align))
    if tile is not None:
        return Choice("tile", _single(problem, centred) if single else _snug(tile, problem.cols, align))
    # What decides is the bytes of a row that are in flight.
    flowing = problem.x.itemsize + itemsize(problem.residual) + itemsize(problem.sum)
    stream = _fitting(t.centred_streams if centred else t.streams, problem.cols * flowing // 2)
    if stream is not None:
        return Choice("stream", stream)
    if piece == 16 and not problem.quantized and problem.residual is not None:
        shared = _fitting((t.summed_cluster,), columns)
        if shared is not None:
            return Choice("cluster", shared)
    return Choice("split", _forward_slice(problem, centred, align))


def _forward_slice(problem: Problem, centred: bool, align: int) -> Tile:
    t = _thresholds
    if _piece(problem.x, align) == 2:
        return t.odd_forward_slice
    if _held(problem) == 4:
        return t.summed_slice
    if _piece(problem.x, align) == 4:
        return t.half_odd_forward_slice
    return t.centred_forward_slice if centred else t.forward_slice


def row_counts_apart() -> tuple[int, ...]:
    """Row counts of which each may get kernels of its own, and no other row count further ones."""
    t = _thresholds
    most = {t.shared_rows, t.shared_widest_rows, t.few_rows, *(rows for _, rows in t.few_shared_rows)}
    most |= {rows for rows, _ in t.few_columns[:-1]} | {rows - 1 for _, rows in t.turns_few_rows}
    most |= {t.centred_backward_short[1] - 1}
    # As many rows as leave small tiles alone, and twice as many again and again, have each number of these together.
    doubled = itertools.takewhile(lambda rows: rows < t.block_row_min_rows, (t.small_programs << n for n in range(32)))
    return 1, *(rows + 1 for rows in sorted(most)), *doubled, t.block_row_min_rows - 1, t.block_row_min_rows


def backward_plan(problem: Problem, device: Device, centred: bool, align: int, may_read_twice: bool) -> Plan:
    """`may_read_twice`: some programs may still read what others are done with, so nothing may be written over it."""
    few = _few(problem, device, centred, align) if may_read_twice and not _forced.choices else None
    if few is not None:
        return few
    choice = _tuned("backward", problem, device, centred, align) or backward_choice(problem, device, centred, align)
    column = problem.y.itemsize + problem.h.itemsize + itemsize(problem.sum)
    if choice.schedule == "ring":
        # What was tuned may be for rows without lanes, which its signature does not tell apart.
        plan = _ring(problem, device, choice.tile) if _suits_a_ring(problem, centred, align) else None
        if plan is not None:
            return plan
        choice = _held_backward(problem, centred, align)
    if choice.schedule in ("tile", "turns"):
        return _walk(problem, device, choice, column)
    return _wide(problem, device, choice.tile, column, _most_partials(problem))


def _ring(problem: Problem, device: Device, tile: Tile) -> Plan | None:
    """Programs that share rows and stay, with the rows in a ring of shared memory; None where the GPU has no room."""
    columns = tile.cols * 2 // problem.h.itemsize
    per_sm, slices = tile.programs_per_sm or 1, cdiv(problem.cols, columns)
    ring = tile.stages * columns * (problem.y.itemsize + problem.h.itemsize)
    if not device.gluon or slices > device.sms * per_sm or ring + 1024 > device.shared // per_sm:
        return None
    groups = min(problem.rows, device.sms * per_sm // slices, _most_partials(problem))
    registers = device.registers // (per_sm * tile.warps * 32) // 8 * 8  # they are handed out in eights
    plan = Plan("ring", 1, columns, tile.warps, groups * slices, 1, tile.stages, slices, min(255, registers))
    return replace(plan, together=True)


def _most_partials(problem: Problem) -> int:
    """Partial rows of dW and dB, of which each program that walks, or each group that shares rows, leaves one."""
    t = _thresholds
    x = problem.rows * problem.lanes * problem.cols * problem.x.itemsize
    row = 4 * problem.cols * ((problem.weight is not None) + (problem.bias is not None))
    return max(1, max(t.partials_bytes, x // t.partials_of_x) // max(1, row))


def _few(problem: Problem, device: Device, centred: bool, align: int) -> Plan | None:
    """For rows that are so few that each may be read twice."""
    t = _thresholds
    rows, columns = problem.rows * problem.lanes, _columns(problem)
    if problem.per_lane or rows > t.few_rows:
        return None
    odd = _piece(problem.h, align) == 2
    wide = problem.cols >= rows * t.few_columns_a_row and rows * columns <= t.few_elements
    short = odd and not centred and rows * columns <= t.few_odd_elements
    if rows > (t.few_odd_rows if short else t.few_rows_of_any_width) and not wide:
        return None
    shared = next((most for cols, most in t.few_shared_rows if columns >= cols), 0)
    if device.clusters and rows <= shared and columns <= t.few_slice.cols * CLUSTER:
        block = t.few_slice.block or t.few_slice.cols
        blocks = cdiv(problem.cols, block * CLUSTER)
        return Plan("few", 1, block, t.few_slice.warps, rows * CLUSTER, blocks, slices=CLUSTER, unit=block)
    if columns > t.few_row.cols and rows > t.few_wide_rows:
        return None
    if odd and rows > t.few_wide_rows:
        row = _fitting((t.few_odd_row,), columns)
        return None if row is None else _tiles(problem, row, "few")
    row = _fitting((t.few_row, t.few_wide_row), columns)
    return None if row is None else _tiles(problem, _snug(row, problem.cols, align), "few")


def backward_choice(problem: Problem, device: Device, centred: bool, align: int) -> Choice:
    """By the thresholds."""
    t = _thresholds
    columns = _columns(problem)
    if device.gluon and columns >= t.ring_from and _suits_a_ring(problem, centred, align):
        few_slices = (tile for tile in t.rings if columns <= tile.cols * t.many_slices)
        return Choice("ring", next(few_slices, t.rings[-1]))
    return _held_backward(problem, centred, align)


def _suits_a_ring(problem: Problem, centred: bool, align: int) -> bool:
    """Whether kernels/ring.py computes it: RMSNorm of nothing but x, whose rows are loaded in vectors."""
    alone = problem.residual is None and problem.sum is None and problem.lanes == 1 and not problem.per_lane
    alike = problem.y.itemsize == problem.h.itemsize >= itemsize(problem.weight)
    return not centred and alone and alike and _piece(problem.h, align) == 16


def _held_backward(problem: Problem, centred: bool, align: int) -> Choice:
    """For rows that wait in registers for their sums, or are walked twice."""
    t = _thresholds
    in_turns = takes_turns(problem, align)
    if in_turns:
        columns = reach(problem) * problem.h.itemsize // 2
        tile = _fitting(t.centred_turns_tiles if centred else t.turns_tiles, columns)
        if problem.rows < next((rows for most, rows in t.turns_few_rows if columns <= most), 0):
            tile = t.turns_few_tile
    else:
        columns = _columns(problem)
        tile = _odd_backward(problem, centred, align) or _fitting(
            t.centred_backward_tiles if centred else t.backward_tiles, columns
        )
        short = centred and t.centred_backward_short[0] <= columns <= t.centred_backward_short_tile.cols
        if short and problem.rows * problem.lanes < t.centred_backward_short[1] and _piece(problem.h, align) > 4:
            tile = t.centred_backward_short_tile
    column = problem.y.itemsize + problem.h.itemsize + itemsize(problem.weight) + (8 if centred else 4)
    narrow = problem.cols * column <= t.backward_row_bytes and not (centred and problem.cols > t.centred_backward_most)
    if tile is not None and narrow:
        return Choice("turns", tile) if in_turns else Choice("tile", _snug(tile, problem.cols, align))
    if _piece(problem.h, align) == 2:
        return Choice("split", t.odd_backward_slice)
    if centred and problem.cols <= t.centred_backward_slice.cols * t.many_slices:
        return Choice("split", t.centred_backward_slice)
    many = problem.cols > t.backward_slice.cols * t.many_slices
    return Choice("split", t.backward_slice_of_many if many and not centred else t.backward_slice)


def _odd_backward(problem: Problem, centred: bool, align: int) -> Tile | None:
    """For rows at odd addresses, where these have tiles of their own."""
    t = _thresholds
    piece = _piece(problem.h, align)
    if piece == 2:
        return _fitting(t.odd_centred_backward_tiles if centred else t.odd_backward_tiles, problem.cols)
    if piece != 4:
        return None
    if problem.cols >= t.half_odd_wide_from:
        return _fitting((t.half_odd_wide_backward_tile,), problem.cols)
    return _fitting(t.half_odd_backward_tiles, problem.cols)


def signature(direction: str, problem: Problem, centred: bool, align: int) -> str:
    """What a tuned choice holds for: all that a kernel is compiled for, but rows and lanes."""
    # A backward is the same whether x was normalized or its copy, which the op that compiled calls take cannot tell.
    copied = direction == "backward" and problem.residual is None and problem.h == problem.x
    total = None if copied else problem.sum
    dtypes = (problem.x, problem.y, problem.weight, problem.bias, problem.residual, total)
    names = " ".join("-" if dtype is None else str(dtype).removeprefix("torch.") for dtype in dtypes)
    heads = " heads" if problem.per_lane else ""
    heads += " turns" if direction == "backward" and takes_turns(problem, align) else ""
    heads += f" fp8 by {problem.group}" if problem.quantized and direction == "forward" else ""
    return f"{'layer_norm' if centred else 'rms_norm'} {direction} {problem.cols} {names} align{align}{heads}"


def _tuned(direction: str, problem: Problem, device: Device, centred: bool, align: int) -> Choice | None:
    """What is forced for now, or stands in the table."""
    if direction in _forced.choices:
        return _forced.choices[direction]
    if _overridden:
        return None
    entry = table.find(device.name, signature(direction, problem, centred, align))
    return None if entry is None else Choice(entry.schedule, entry.tile)


def takes_turns(problem: Problem, align: int) -> bool:
    """Whether a backward's programs take rows that lie alike, so that all can be loaded in vectors."""
    narrow = _piece(problem.h, align) <= 4
    return problem.turns > 1 and narrow and problem.cols * problem.h.itemsize >= _thresholds.turns_from_bytes


def reach(problem: Problem) -> int:
    """The columns, and what may come before them in the 16 bytes in which a row begins that is taken in turns."""
    return problem.cols + 16 // problem.h.itemsize - 1


def _columns(problem: Problem) -> int:
    """Of 16 bits, as the backward's tables count them."""
    return problem.cols * max(problem.y.itemsize, problem.h.itemsize) // 2


def is_packed(plan: Plan, align: int, backward: bool) -> bool:
    """Whether threads keep 16-bit blocks as they are, in pairs, and widen them at each use."""
    return align > 1 and plan.elements >= _thresholds.packed_elements[backward]


def _fitting(tiles: tuple[Tile, ...], cols: int) -> Tile | None:
    """The first tile for rows as wide as `cols` columns of 16 bits."""
    return next((tile for tile in tiles if cols <= tile.cols), None)


def _piece(dtype: torch.dtype, align: int) -> int:
    """The bytes in which a row can be loaded, given what its beginnings have in common."""
    return min(16, align * dtype.itemsize)


def _single(problem: Problem, centred: bool) -> Tile:
    t, cols = _thresholds, problem.cols
    warps = min(16, max(1 if centred else 2, power_of_two(cdiv(cols, 32 * t.single_elements[centred]))))
    return Tile(cols, 1, warps, block=32 * warps)


def _batch_invariant(problem: Problem, tile: Tile, align: int) -> Tile:
    """The tile for many or for few short rows. A row lies over the same threads in both, so its bits are the same."""
    t = _thresholds
    if tile.rows == 1 or problem.rows >= t.block_row_min_rows:
        return tile
    block, vector = _block(tile, problem), _vector(problem, align)
    if align < 16 // problem.x.itemsize:
        # Rows that do not begin at 16 bytes keep the full tile, since how the compiler lays these out depends on their
        # number; but one that is loaded element by element has a warp, alone or not.
        alone = block >= 32 and align == 1 and cdiv(problem.rows, tile.rows) < t.small_programs
        return replace(tile, rows=min(tile.rows, tile.warps)) if alone else tile
    # What a thread holds side by side: a vector, or what the full tile leaves it.
    vector = min(vector, max(1, tile.rows * block // (32 * tile.warps)))
    # The compiler spreads a row over as many threads as it has vectors, but no further than the program's warps reach.
    threads_per_row = min(max(1, block // vector), 32 * tile.warps)
    warps = max(1, threads_per_row // 32)
    rows = min(tile.rows, max(1, 32 * warps * vector // block))
    if rows > 1:
        most = max(rows, t.small_elements // power_of_two(problem.cols))
        while cdiv(problem.rows, rows) > t.small_programs and 2 * rows <= most and 2 * warps <= t.small_warps:
            warps, rows = 2 * warps, 2 * rows
    return replace(tile, rows=rows, warps=warps)


def _vector(problem: Problem, align: int) -> int:
    """Elements that a thread has side by side, of rows that begin on 16 bytes."""
    if problem.quantized not in (None, "tensor", "amax"):  # 16 bytes are stored too; for the tensor it is x that counts
        return min(16, align)
    return 16 // problem.x.itemsize


def _snug(tile: Tile, cols: int, align: int) -> Tile:
    """The tile, with a narrower block where less of the last one would then be beyond the row.

    For tiles of a single row: where several are for many rows and fewer for few, both must have the same block.
    """
    if tile.rows > 1 or align < 4:
        return tile
    block = min(power_of_two(cols), tile.block or tile.cols)
    # Down to four elements a thread: 61 us against 68 at 8,192 x 4,100, LayerNorm's backward. Narrower loads cost more
    # than the padding, and rows that are loaded in narrower pieces anyway gain nothing.
    narrower = itertools.takewhile(lambda width: width >= 128 * tile.warps, (block >> n for n in range(1, 16)))
    return replace(tile, block=min([block, *narrower], key=lambda width: max(cols // 8, -cols % width)))


def _block(tile: Tile, problem: Problem) -> int:
    return max(problem.group, min(power_of_two(problem.cols), tile.block or tile.cols))


def _tiles(problem: Problem, tile: Tile, schedule: str = "tile") -> Plan:
    """A program for each tile of a lane."""
    block = _block(tile, problem)
    programs = cdiv(problem.rows, tile.rows) * problem.lanes
    return Plan(schedule, tile.rows, block, tile.warps, programs, cdiv(problem.cols, block))


def _walk(problem: Problem, device: Device, choice: Choice, column: int) -> Plan:
    """Programs that walk the tiles of a lane, or of a turn. `column` is the bytes read for one element."""
    tile, apart = choice.tile, problem.lanes
    if choice.schedule == "turns":
        apart = problem.turns
        tiles = cdiv(cdiv(problem.rows, apart), tile.rows) * apart
        plan = replace(_tiles(replace(problem, cols=reach(problem)), tile, "turns"), programs=tiles)
    else:
        plan = _tiles(problem, tile)
    per_sm = tile.programs_per_sm or 1
    programs = max(1, min(plan.programs, _walkers(device.sms * per_sm), _most_partials(problem)) // apart)
    stages = _stages_that_fit(tile, per_sm, plan.rows * plan.blocks * plan.block * column, device)
    return replace(plan, programs=programs * apart, stages=stages)


def _walkers(resident: int) -> int:
    """How many of the programs that can run at once are to walk: a power of two, if that leaves few of them out.

    Their partials are then summed at once, where the last few would take a second step.
    """
    power = 1 << (resident.bit_length() - 1)
    return power if power >= _thresholds.walking_share * resident else resident


def _wide(problem: Problem, device: Device, tile: Tile, column: int, most: int | None = None) -> Plan:
    """Split where all programs of a row can run at the same time, else stream; in `most` groups of them at the most."""
    per_sm = tile.programs_per_sm or 0
    slices = cdiv(problem.cols, tile.cols)
    resident = device.sms * per_sm
    rows = problem.rows * problem.lanes
    if device.cooperative and slices <= resident and not problem.per_lane:
        groups = min(rows, resident // slices, most or rows)
        registers = device.registers // (per_sm * tile.warps * 32) // 8 * 8  # they are handed out in eights
        stages = _stages_that_fit(tile, per_sm, tile.cols * column, device)
        plan = Plan("split", 1, tile.cols, tile.warps, groups * slices, 1, stages, slices, min(255, registers))
        return replace(plan, together=True)
    return stream_plan(problem)


def stream_plan(problem: Problem) -> Plan:
    t = _thresholds
    block = _block(Tile(t.stream_block, 1, t.stream_warps), problem)
    return Plan("stream", 1, block, t.stream_warps, problem.rows * problem.lanes)


def _stages_that_fit(tile: Tile, programs_per_sm: int, tile_bytes: int, device: Device) -> int:
    """Each stage but the last keeps a tile of every input in shared memory, beside what reductions need of it."""
    scratch = 1024 + 4 * tile.rows * (tile.block or tile.cols)
    room = device.shared // programs_per_sm - scratch
    return max(1, min(tile.stages, 1 + room // tile_bytes))


def itemsize(dtype: torch.dtype | None) -> int:
    return 0 if dtype is None else dtype.itemsize


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
