"""What is planned: a Choice, by width alone, and of it a Plan, for so many rows. And the arithmetic of tiles.

A Choice comes from the table of what was tuned (table.py), else from the thresholds (thresholds.py), which are the
model for every width and GPU that nobody tuned.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch

from onepass.plan import in_force
from onepass.plan.tiles import Between, Tile
from onepass.spec import Problem


@dataclass(frozen=True)
class Plan:
    """One launch: `programs` programs of `warps` warps, each with `blocks` blocks of `rows` × `block` elements."""

    # "tile", "split" or "stream"; "threads" for the shortest rows that do not begin on 16 bytes; "odd" and "flat" for a
    # forward of wide and of short ones that begin anywhere, "odd_split" of such that programs share; for a backward
    # "few" of few rows, "few_split" of few wide ones, "turns" of odd ones, "split_turns" of odd ones that programs
    # share, "ring" and "ring_turns" of shared ones, and of odd shared ones, from shared memory; "columnwise" and
    # "staged" for FP8 both ways
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
    # Columns with one pivot, where both of LayerNorm's moments are found in one walk (kernels/tile.py); None: in two
    at_once: int | None = None
    # Columns that programs which share a row take in turn (kernels/cluster.py), or that a thread of the tile has side
    # by side, by whose sums one thread adds a row up (kernels/threads.py)
    unit: int = 1
    ahead: int | None = (
        None  # blocks of weight and bias that are asked for with the row, before they are needed; None: all
    )
    affine_first: bool = False  # weight and bias are asked for before the row, and not when it has come
    sum_first: bool = False  # the sum with the residual is stored before it is normalized, and not with y
    prompt: bool = False  # rows so few that what counts is how soon each is done (kernels/tile.py)
    together: bool = False  # all programs must run at the same time
    chains: int = 1  # in which a forward's blocks are summed in turn (chains.py)
    partials: int = 0  # rows of partial sums that groups of programs leave, where two may share one (kernels/ring.py)
    turns: int = 1  # a program, or a group of them, takes one row of so many, which lie alike

    @property
    def elements(self) -> int:
        """That a thread holds of each input."""
        return self.rows * self.block * self.blocks // (32 * self.warps)

    def is_even(self, cols: int) -> bool:
        """Whether its blocks fill a row."""
        return self.slices * self.blocks * self.block == cols

    def lies_otherwise(self, vector: int, weight: int, row: int) -> bool:
        """Whether a row of weight, by itself, has fewer columns in a thread than the tile, which has a vector of them:
        because it is short, or because an element of it is larger than one of the rows, by these sizes.

        With less than one for each thread the compiler loads it again wherever it is needed. Larger ones it would have
        all else lie as: 101.5 us against 105.5 at 16,384 x 4,096 in bf16 with a weight in fp32.
        """
        short = 32 * self.warps <= self.block < 32 * self.warps * vector
        return self.rows > 1 and (short or weight > row)

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

    # As a Plan's, without what the number of rows decides; "cluster" for a tile whose rows are always shared
    schedule: str
    tile: Tile


#: The most programs that form a cluster, on every GPU that has them, and registers of a thread.
CLUSTER, REGISTERS = 8, 255


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def itemsize(dtype: torch.dtype | None) -> int:
    return 0 if dtype is None else dtype.itemsize


def columns_of_16_bits(problem: Problem) -> int:
    """Of 16 bits, as the backward's tables count them."""
    return problem.cols * max(problem.y.itemsize, problem.h.itemsize) // 2


def fitting(tiles: tuple[Tile, ...], cols: int) -> Tile | None:
    """The first tile for rows as wide as `cols` columns of 16 bits."""
    return next((tile for tile in tiles if cols <= tile.cols), None)


def between(tiles: Between, cols: int) -> Tile | None:
    return next((tile for least, tile in tiles if least <= cols <= tile.cols), None)


def piece_of(dtype: torch.dtype, align: int) -> int:
    """The bytes in which a row can be loaded, given what its beginnings have in common."""
    return min(16, align * dtype.itemsize)


def kind_of(problem: Problem, centred: bool) -> int:
    """Its place in thresholds of RMSNorm's, LayerNorm's and RMSNorm's with a residual."""
    return 1 if centred else 0 if problem.residual is None else 2


def vector_of(problem: Problem, align: int) -> int:
    """Elements that a thread has side by side, of rows that begin on 16 bytes."""
    if problem.quantized not in (None, "tensor", "amax"):  # 16 bytes are stored too; for the tensor it is x that counts
        return min(16, align)
    return 16 // problem.x.itemsize


def snug(tile: Tile, cols: int, align: int) -> Tile:
    """The tile, with a narrower block where less of the last one would then be beyond the row.

    For tiles of a single row: where several are for many rows and fewer for few, both must have the same block.
    """
    if tile.rows > 1 or align < 4 or not tile.narrows:
        return tile
    block = min(power_of_two(cols), tile.block or tile.cols)
    # Down to four elements a thread: 61 us against 68 at 8,192 x 4,100, LayerNorm's backward. Narrower loads cost more
    # than the padding, and rows that are loaded in narrower pieces anyway gain nothing.
    narrower = itertools.takewhile(lambda width: width >= 128 * tile.warps, (block >> n for n in range(1, 16)))
    return replace(tile, block=min([block, *narrower], key=lambda width: max(cols // 8, -cols % width)))


def block_of(tile: Tile, problem: Problem) -> int:
    return max(problem.group, min(power_of_two(problem.cols), tile.block or tile.cols))


def tiles_of(problem: Problem, tile: Tile, schedule: str = "tile") -> Plan:
    """A program for each tile of a lane."""
    block = block_of(tile, problem)
    programs = cdiv(problem.rows, tile.rows) * problem.lanes
    return Plan(schedule, tile.rows, block, tile.warps, programs, cdiv(problem.cols, block))


def stream_plan(problem: Problem) -> Plan:
    t = in_force.thresholds()
    block = block_of(Tile(t.stream_block, 1, t.stream_warps), problem)
    return Plan("stream", 1, block, t.stream_warps, problem.rows * problem.lanes)


def chunks_of(plan: Plan, problem: Problem) -> int:
    """How often each thread copies a vector, so that a program's rows are in shared memory, wherever they begin in 128
    bytes.
    """
    vector = 16 // problem.x.itemsize
    return cdiv(8 * vector - 1 + plan.rows * problem.cols + vector - 1, 32 * plan.warps * vector)


def slot_of(plan: Plan, problem: Problem) -> int:
    """Elements of shared memory for them there: whole blocks of columns, and all that is copied."""
    vector = 16 // problem.x.itemsize
    blocks = power_of_two(plan.blocks) if plan.schedule == "flat" else plan.blocks  # that are stored at once
    line, reach = 8 * vector, (plan.rows - 1) * problem.cols + blocks * plan.block
    reach = cdiv(line - 1 + reach, line) * line
    if plan.schedule == "odd_split":
        return line + reach  # y may begin before the row
    return max(reach, chunks_of(plan, problem) * 32 * plan.warps * vector)


def slots_of(problem: Problem) -> int:
    """How many slots kernels/odd_split.py has: of what is of 16 bits, but weight and bias both or neither."""
    affine = [dtype for dtype in (problem.weight, problem.bias) if dtype is not None]
    staged = len(affine) if all(dtype.itemsize == 2 for dtype in affine) else 0
    return (3 if problem.residual is None else 6) + staged


def has_pairs(plan: Plan, problem: Problem) -> bool:
    """Whether weight and bias share registers in kernels/odd.py, where beside the row they would be too many.

    77 us against 82 at 5,587 x 12,001, and 73 against 84 at 6,707 x 10,001: two programs are on an SM then, for one.
    Where it changes nothing of that it is slower, 83 us against 79 at 4,787 x 14,001.
    """
    alike = problem.weight == problem.bias is not None and itemsize(problem.bias) == 2
    beside = 24 if problem.residual is None else 48
    return alike and plan.registers is not None and 3 * plan.blocks + beside > plan.registers


def lies_over(plan: Plan, align: int, *dtypes: torch.dtype | None) -> tuple[int, int]:
    """The warps that a program's row lies over, and a thread's columns side by side (kernels/sums.py).

    (1, 1) for more than two rows, one warp, and where tensors of other widths may change how a row is laid out.
    """
    sizes = {dtype.itemsize for dtype in dtypes if dtype is not None}
    side = min(align, 16 // max(sizes), plan.block // (32 * plan.warps))
    known = len(sizes) == 1 and side > 0 and plan.block % (32 * plan.warps * side) == 0
    return (plan.warps, side) if known and plan.rows <= 2 and plan.warps > 1 else (1, 1)


def is_packed(plan: Plan, align: int, backward: bool) -> bool:
    """Whether threads keep 16-bit blocks as they are, in pairs, and widen them at each use."""
    return align > 1 and plan.elements >= in_force.thresholds().packed_elements[backward]
