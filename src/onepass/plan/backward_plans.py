"""A backward's plan: which schedule, which tile, how many programs."""

from __future__ import annotations

from dataclasses import replace

from onepass.plan import in_force, row_counts
from onepass.plan.device import Device
from onepass.plan.limits import few_limited, most_few_limited
from onepass.plan.plans import (
    CLUSTER,
    REGISTERS,
    Choice,
    Plan,
    between,
    cdiv,
    columns_of_16_bits,
    fitting,
    itemsize,
    kind_of,
    piece_of,
    power_of_two,
    slot_of,
    snug,
    stream_plan,
    tiles_of,
)
from onepass.plan.tiles import Tile
from onepass.plan.tuned import tuned_choice
from onepass.plan.turns import reach, takes_turns
from onepass.spec import Problem


def backward_plan(problem: Problem, device: Device, centred: bool, align: int, may_read_twice: bool) -> Plan:
    """`may_read_twice`: some programs may still read what others are done with, so nothing may be written over it."""
    few = _few(problem, device, centred, align) if may_read_twice and not in_force.forced() else None
    if few is not None:
        return few
    choice = tuned_choice("backward", problem, device, centred, align) or backward_choice(
        problem, device, centred, align
    )
    column = problem.y.itemsize + problem.h.itemsize + itemsize(problem.sum)
    if choice.schedule in ("ring", "ring_turns"):
        # What was tuned may be for rows without lanes, or in turns, which its signature does not tell apart.
        suits = _suits_a_ring(problem, device, centred, align) and choice.schedule == _ring_for(problem)
        plan = _ring(problem, device, choice, centred) if suits else None
        if plan is not None:
            return plan
        choice = _held_backward(problem, centred, align)
    if choice.schedule == "threads":
        if device.gluon and problem.turns > 1 and problem.rows >= least_by_thread(problem, device, align):
            return _by_threads(problem, device, choice.tile)
        choice = _held_backward(problem, centred, align)
    if choice.schedule in ("tile", "turns"):
        return _walk(problem, device, choice, column)
    if choice.schedule == "split_turns":
        plan = split_turns_plan(problem, device, choice.tile, column)
        return plan or _wide(problem, device, _slice(problem, centred, align), column)
    return _wide(problem, device, choice.tile, column)


def row_counts_apart(problem: Problem, device: Device, centred: bool, align: int) -> tuple[int, ...]:
    """Row counts of which each may get kernels of its own, and no other row count further ones."""
    limited = most_few_limited(problem, device, centred, align)
    by_thread, in_ring = least_by_thread(problem, device, align), least_in_ring(problem, device, centred)
    most = (limited, min(_few_in_clusters(problem, centred, align)) // problem.lanes, least_of_many(problem) - 1)
    least = by_thread, in_ring, *(rows + more for rows in most for more in (0, 1))
    return row_counts.row_counts_apart(0, *(rows for rows in least if rows))


def least_by_thread(problem: Problem, device: Device, align: int) -> int:
    """The fewest short rows that have a thread each."""
    t = in_force.thresholds()
    shortest, wider, in_eights = t.threads_backward_rows
    if piece_of(problem.h, align) > 4:
        return device.sms * in_eights
    return device.sms * (shortest if columns_of_16_bits(problem) <= t.threads_backward_shortest else wider)


def _by_threads(problem: Problem, device: Device, tile: Tile) -> Plan:
    """Programs that stay, as many as run at once. An SM's registers are four parts: warps, too, are so many in each."""
    rows, slots = 32 * tile.warps, tile.stages * (2 if problem.sum is None else 3)
    plan = Plan("threads", rows, 1, tile.warps, cdiv(problem.rows, rows), stages=tile.stages)
    room = device.shared // (slots * slot_of(plan, problem) * problem.h.itemsize + 1024)
    per_sm = max(1, min(tile.programs_per_sm or 1, room * tile.warps // 4 * 4 // tile.warps))
    registers = min(REGISTERS, device.registers // (rows * per_sm) // 8 * 8)
    programs = min(plan.programs, device.sms * per_sm, _most_partials(problem) // tile.warps)
    return replace(plan, programs=max(1, programs), registers=registers)


def _ring(problem: Problem, device: Device, choice: Choice, centred: bool) -> Plan | None:
    """With the rows in a ring of shared memory; None where the GPU has no room.

    LayerNorm's groups of programs may leave their partial sums two in a row.
    """
    tile = choice.tile
    columns = tile.cols * 2 // problem.h.itemsize
    ring = tile.stages * columns * (problem.y.itemsize + problem.h.itemsize)
    if not device.gluon or ring + 1024 > device.shared // (tile.programs_per_sm or 1):
        return None
    plan = _in_turns(choice.schedule, problem, device, tile, columns, tile.stages, each=2 if centred else 1)
    if plan is None:
        return None
    groups = plan.programs // plan.slices
    shared = cdiv(cdiv(groups, 2), plan.turns) * plan.turns
    return replace(plan, partials=groups if groups <= _most_partials(problem) else shared)


def _in_turns(
    schedule: str,
    problem: Problem,
    device: Device,
    tile: Tile,
    columns: int,
    stages: int,
    by_sector: bool = True,
    each: int = 1,
) -> Plan | None:
    """Groups of programs whose rows lie alike, in sectors, or in vectors where that would leave too few of them.

    Few rows do as more would: else such a row count had a kernel of its own.
    """
    t, vector = in_force.thresholds(), 16 // problem.h.itemsize

    def planned(problem: Problem, turns: int, vector: int) -> Plan | None:
        return _shared(schedule, problem, device, tile, columns, stages, turns, vector, each)

    if by_sector and problem.sector_turns > problem.turns:
        many = replace(problem, rows=max(problem.rows, t.few_rows + 1))
        plan, fewer = planned(many, problem.turns, vector), planned(many, problem.sector_turns, 2 * vector)
        if plan is not None and fewer is not None and fewer.programs >= t.sector_share * plan.programs:
            return planned(problem, problem.sector_turns, 2 * vector)
    return planned(problem, problem.turns, vector)


def _most_partials(problem: Problem) -> int:
    """Partial rows of dW and dB, of which each program that walks, or each group that shares rows, leaves one."""
    t = in_force.thresholds()
    x = problem.rows * problem.lanes * problem.cols * problem.x.itemsize
    row = 4 * problem.cols * ((problem.weight is not None) + (problem.bias is not None))
    return max(1, max(t.partials_bytes, x // t.partials_of_x) // max(1, row))


def _few(problem: Problem, device: Device, centred: bool, align: int) -> Plan | None:
    """For rows that are so few that each may be read twice."""
    t = in_force.thresholds()
    rows, columns = problem.rows * problem.lanes, columns_of_16_bits(problem)
    if problem.per_lane or rows > t.few_rows:
        return None
    odd = piece_of(problem.h, align) == 2
    wide = problem.cols >= rows * t.few_columns_a_row and rows * columns <= t.few_elements
    short = odd and not centred and rows * columns <= t.few_odd_elements
    if rows > (t.few_odd_rows if short else t.few_rows_of_any_width) and not wide:
        return None
    if problem.cols >= t.few_split_from:
        plan = _few_split(problem, device, align)
        if plan is not None:
            return plan
    shared, of_these = _few_in_clusters(problem, centred, align)
    tile = _few_slice(problem, centred, align)
    if device.clusters and rows <= shared and tile is not None:
        if rows > of_these:
            return None
        block = tile.block or tile.cols
        blocks = cdiv(problem.cols, block * CLUSTER)
        return Plan("few", 1, block, tile.warps, rows * CLUSTER, blocks, slices=CLUSTER, unit=block)
    if columns > t.few_row.cols and rows > t.few_wide_rows:
        return None
    if takes_turns(problem, align) and rows * rows * columns > t.few_in_turns:
        return None
    if odd and rows > t.few_wide_rows:
        row = fitting((t.few_odd_row,), columns)
        return None if row is None else tiles_of(problem, row, "few")
    row = fitting((t.few_row, t.few_wide_row), columns)
    if row is None:
        return None
    return few_limited(problem, device, tiles_of(problem, snug(row, problem.cols, align), "few"), centred, align)


def _few_in_clusters(problem: Problem, centred: bool, align: int) -> tuple[int, int]:
    """The most rows that clusters may share by their width alone, and by all their elements together."""
    t, columns, piece = in_force.thresholds(), columns_of_16_bits(problem), piece_of(problem.h, align)
    by_width = next((most for cols, most in t.few_shared_rows if columns >= cols), 0)
    each = columns // t.few_columns_each
    kind = kind_of(problem, centred)
    most = next(kinds for widest, kinds in t.few_shared_elements if piece <= widest)[kind] // columns
    if piece == 2:
        most = max(most, min(each, t.few_wide_odd_elements[kind] // columns))
    return each if columns >= t.few_widest_from else by_width, most


def _few_split(problem: Problem, device: Device, align: int) -> Plan | None:
    """A program for some columns of all rows, up to a power of two of these; None where they could not hold them."""
    t, rows, columns = in_force.thresholds(), problem.rows * problem.lanes, columns_of_16_bits(problem)
    odd_sum = piece_of(problem.h, align) == 2 and problem.residual is not None
    tiles = t.few_split_odd_summed_tiles if odd_sum else t.few_split_tiles
    tile = next((tile for tile in tiles if rows <= tile.rows and columns <= tile.cols), None)
    if tile is None or tile.block is None or not (device.gluon and device.cooperative):
        return None
    # Four bytes a thread: wider loads are level, and leave less choice of how many columns a program has.
    vector = min(align, 4 // problem.h.itemsize)
    block, programs = tile.block * vector, power_of_two(device.sms + 1) // 2
    blocks = cdiv(problem.cols, block * programs)
    slices = cdiv(problem.cols, block * blocks)
    registers = min(REGISTERS, device.registers // (32 * tile.warps) // 8 * 8)  # they are handed out in eights
    plan = Plan("few_split", tile.rows, block, tile.warps, slices, blocks, slices=slices, registers=registers)
    return replace(plan, unit=vector, together=True)


def _few_slice(problem: Problem, centred: bool, align: int) -> Tile | None:
    """For few rows that are shared by clusters, up to so many columns; None where these could not hold them."""
    t, single = in_force.thresholds(), piece_of(problem.h, align) == 2
    rows, columns = problem.rows * problem.lanes, columns_of_16_bits(problem)
    lone = rows <= t.few_lone[0] and columns >= t.few_lone[1]
    if columns <= t.few_slice.cols and not lone and not (single and columns >= t.few_single_between[0]):
        return t.few_slice
    if columns > (t.few_single_between[1] if single else t.few_wide_slice.cols):
        return None
    # As wide as keeps every thread loading 16 bytes.
    tile = t.few_wide_slice
    return replace(tile, block=(tile.block or tile.cols) * problem.cols // columns)


def backward_choice(problem: Problem, device: Device, centred: bool, align: int) -> Choice:
    """By the thresholds."""
    t = in_force.thresholds()
    columns = columns_of_16_bits(problem)
    if device.gluon and columns >= t.ring_from and _suits_a_ring(problem, device, centred, align):
        return Choice(_ring_for(problem), _ring_tile(problem, device, columns, centred))
    two_sums = centred or problem.bias is not None
    short = fitting(t.threads_backward_tiles[kind_of(problem, two_sums)], columns)
    if short is not None and device.gluon and problem.turns > 1:
        return Choice("threads", short)
    return _held_backward(problem, centred, align)


def _ring_tile(problem: Problem, device: Device, columns: int, centred: bool) -> Tile:
    t = in_force.thresholds()
    if centred:
        if problem.turns > 1:
            return t.centred_turns_rings[columns > 2 * t.centred_turns_rings[0].cols * t.many_slices]
        return t.rings[0] if columns <= t.rings[0].cols * t.many_slices else t.rings[-1]
    usual = next((tile for tile in t.rings if columns <= tile.cols * t.many_slices), t.rings[-1])
    if columns < t.ring_of_fewest_from or problem.cols * problem.h.itemsize % 128 == 0:
        return usual
    shares = [_share_at_work(replace(problem, rows=1 << 30), device, tile) for tile in (usual, t.rings[-1])]
    return t.rings[-1] if shares[1] >= t.sector_share * shares[0] else usual


def _share_at_work(problem: Problem, device: Device, tile: Tile) -> float:
    """Of the programs that could run at once, which share does; the others would be less than a group of them."""
    plan = _ring(problem, device, Choice(_ring_for(problem), tile), False)
    return 0.0 if plan is None else plan.programs / (device.sms * (tile.programs_per_sm or 1))


def _suits_a_ring(problem: Problem, device: Device, centred: bool, align: int) -> bool:
    """Whether kernels/ring.py computes it, of nothing but x, in so many rows that it gains, loaded in vectors;
    LayerNorm's of 16 bits, and of such a width that it gains.
    """
    alone = problem.residual is None and problem.sum is None and problem.lanes == 1 and not problem.per_lane
    alike = problem.y.itemsize == problem.h.itemsize >= itemsize(problem.weight)
    suits = alone and alike and problem.rows >= least_in_ring(problem, device, centred)
    if centred:
        t = in_force.thresholds()
        by_sectors = problem.cols * 2 % 32 == 0 or problem.cols > t.rings[0].cols * t.many_slices
        suits = suits and problem.h.itemsize == 2 and (by_sectors or problem.turns > 1)
    return suits and (piece_of(problem.h, align) == 16 or problem.turns > 1)


def least_of_many(problem: Problem) -> int:
    """The fewest rows that programs share that are many, by their elements."""
    return cdiv(in_force.thresholds().many_elements, columns_of_16_bits(problem))


def least_in_ring(problem: Problem, device: Device, centred: bool) -> int:
    """The fewest rows that wait in a ring: of RMSNorm's wide ones those that are as many elements as pay for its start,
    of LayerNorm's as many as give some to each group of programs.
    """
    t, columns = in_force.thresholds(), columns_of_16_bits(problem)
    if columns < t.ring_from:
        return 1
    if not centred:
        narrow = next((least for most, least in t.ring_turns_elements if columns <= most), None)
        return least_of_many(problem) if narrow is None or problem.turns == 1 else cdiv(narrow, columns)
    tile, rows = _ring_tile(problem, device, columns, centred), t.centred_ring_rows[problem.turns > 1]
    return max(1, rows * (device.sms * (tile.programs_per_sm or 1) // cdiv(problem.cols, tile.cols)))


def _ring_for(problem: Problem) -> str:
    return "ring" if problem.turns == 1 else "ring_turns"


def _held_backward(problem: Problem, centred: bool, align: int) -> Choice:
    """For rows that wait in registers for their sums, or are walked twice."""
    t, alone = in_force.thresholds(), problem.residual is None
    in_turns = takes_turns(problem, align) or _eights_in_turns(problem, centred, align)
    if in_turns:
        columns = reach(problem) * problem.h.itemsize // 2
        tile = fitting(t.centred_turns_tiles if centred else t.turns_tiles, columns)
        if problem.h.itemsize == 4:
            tile = between(t.turns_of_fp32_between if alone else t.summed_turns_of_fp32_between, columns) or tile
            many = t.turns_of_fp32_many if alone else t.summed_turns_of_fp32_many
            tile = _of_many(many, columns, problem.rows) or tile
        else:
            kind = kind_of(problem, centred)
            tile = between(t.turns_of_16_bits_between[kind], columns) or tile
            tile = _of_few(t.summed_turns_of_16_bits_few if kind == 2 else (), columns, problem.rows) or tile
        few = t.turns_few if alone else t.summed_turns_few
        tile = _of_few(few, columns, problem.rows) or tile
    else:
        columns = columns_of_16_bits(problem)
        tiles = t.backward_tiles if alone else t.summed_backward_tiles
        if centred:
            tiles = t.centred_backward_tiles
        own, piece = _odd_backward(problem, centred, align), piece_of(problem.h, align)
        tile = own or fitting(tiles, columns)
        if piece > 4:
            if own is None or problem.cols <= t.eights_backward_tiles[-1].cols:
                tile = _of_few(_short_tiles(problem, centred), columns, problem.rows * problem.lanes) or tile
            if centred and alone and piece == 16 and problem.h.itemsize == 2:
                tile = between(t.centred_backward_between, columns) or tile
            tile = _of_few(_few_tiles(problem, centred), columns, problem.rows * problem.lanes) or tile
        if problem.dense and problem.h.itemsize == problem.y.itemsize == 2 and problem.cols % 16 == 8:
            many = t.backward_between_sectors[kind_of(problem, centred)]
            tile = _of_many(many, columns, problem.rows * problem.lanes) or tile
    column = problem.y.itemsize + problem.h.itemsize + itemsize(problem.weight) + (8 if centred else 4)
    narrow = problem.cols * column <= t.backward_row_bytes and not (centred and problem.cols > t.centred_backward_most)
    narrow = narrow and not (problem.residual is not None and problem.cols > t.summed_backward_most)
    shared = _sums_shared_sooner(problem, centred, align)
    if tile is not None and narrow and not shared:
        return Choice("turns", tile) if in_turns else Choice("tile", snug(tile, problem.cols, align))
    in_slices = _turns_slice(problem, centred, align) if in_turns or shared else None
    return Choice("split", _slice(problem, centred, align)) if in_slices is None else Choice("split_turns", in_slices)


def _eights_in_turns(problem: Problem, centred: bool, align: int) -> bool:
    """Whether rows that begin on 8 bytes are taken in turns, as those are that begin on fewer."""
    t = in_force.thresholds()
    wide = t.centred_eights_in_turns_from[problem.h.itemsize == 4] <= problem.cols <= t.centred_backward_most
    return centred and problem.residual is None and wide and problem.turns > 1 and piece_of(problem.h, align) == 8


def _sums_shared_sooner(problem: Problem, centred: bool, align: int) -> bool:
    """Whether programs share rows, in turns, that one could hold."""
    t, begins = in_force.thresholds(), piece_of(problem.h, align) <= 2 * problem.h.itemsize
    summed = problem.residual is not None and not centred and problem.turns > 1
    wide = t.summed_turns_shared_from[problem.h.itemsize == 4] <= problem.cols <= t.summed_backward_most
    return summed and begins and wide and problem.rows >= least_of_many(problem)


def _turns_slice(problem: Problem, centred: bool, align: int) -> Tile | None:
    """For rows that programs share in turns, whichever these are."""
    t = in_force.thresholds()
    if centred:
        shared = t.centred_single_turns_shared if piece_of(problem.h, align) == 2 else t.centred_turns_shared
    else:
        shared = t.turns_shared_few if problem.rows < least_of_many(problem) else t.turns_shared
    return next((tile for most, tile in shared if problem.cols <= most), None)


def _of_few(tiles: tuple[tuple[int, int, int, Tile], ...], columns: int, rows: int) -> Tile | None:
    return next((tile for least, most, fewer, tile in tiles if least <= columns <= most and rows < fewer), None)


def _of_many(tiles: tuple[tuple[int, int, int, Tile], ...], columns: int, rows: int) -> Tile | None:
    return next((tile for least, most, fewest, tile in tiles if least <= columns <= most and rows >= fewest), None)


def _short_tiles(problem: Problem, centred: bool) -> tuple[tuple[int, int, int, Tile], ...]:
    t = in_force.thresholds()
    if columns_of_16_bits(problem) > problem.cols:
        return t.centred_fp32_backward_short if centred else ()
    if centred:
        return t.centred_backward_short
    return t.backward_short if problem.residual is None else t.summed_backward_short


def _few_tiles(problem: Problem, centred: bool) -> tuple[tuple[int, int, int, Tile], ...]:
    t = in_force.thresholds()
    if problem.residual is not None:
        return t.summed_backward_few
    return t.centred_backward_few if centred else t.backward_few


def _slice(problem: Problem, centred: bool, align: int) -> Tile:
    """For rows that programs share, whichever these are."""
    t = in_force.thresholds()
    if piece_of(problem.h, align) == 2:
        return t.odd_backward_slice
    few_slices = t.centred_backward_slice.cols * t.many_slices if centred else 0
    if problem.residual is not None:
        few_slices = max(few_slices, t.summed_narrow_most)
    elif problem.rows * problem.lanes < least_of_many(problem):
        few_slices = max(few_slices, t.few_narrow_most)
    if problem.cols <= few_slices:
        return t.centred_backward_slice
    many = problem.cols > t.backward_slice.cols * t.many_slices
    return t.backward_slice_of_many if many and not centred else t.backward_slice


def _odd_backward(problem: Problem, centred: bool, align: int) -> Tile | None:
    """For rows at odd addresses, where these have tiles of their own."""
    t = in_force.thresholds()
    piece = piece_of(problem.h, align)
    if piece == 2:
        return fitting(t.odd_centred_backward_tiles if centred else t.odd_backward_tiles, problem.cols)
    if piece == 8 and problem.cols >= t.eights_from:
        by_kind = t.eights_of_16_bits_between if problem.h.itemsize == 2 else t.eights_of_fp32_between
        own = () if centred and problem.residual is not None else by_kind[kind_of(problem, centred)]
        return between(own, columns_of_16_bits(problem)) or fitting(t.eights_backward_tiles, problem.cols)
    if piece != 4:
        return None
    if centred and problem.h.itemsize == 4 and problem.cols <= t.odd_centred_wide_short_tile.cols:
        return t.odd_centred_wide_short_tile
    if problem.residual is None and problem.cols <= t.half_odd_short_tile.cols:
        return t.half_odd_short_tile
    if problem.cols >= t.half_odd_wide_from:
        return fitting((t.half_odd_wide_backward_tile,), problem.cols)
    return fitting(t.half_odd_backward_tiles, problem.cols)


def by_constants(problem: Problem, centred: bool) -> bool:
    """Whether the tile kernel is compiled for where dense rows begin, and does not have to work it out."""
    return centred or columns_of_16_bits(problem) <= in_force.thresholds().dense_columns


def _walk(problem: Problem, device: Device, choice: Choice, column: int) -> Plan:
    """Programs that walk the tiles of a lane, or of a turn. `column` is the bytes read for one element."""
    tile, apart = choice.tile, problem.lanes
    if choice.schedule == "turns":
        apart = problem.turns
        tiles = cdiv(cdiv(problem.rows, apart), tile.rows) * apart
        plan = tiles_of(replace(problem, cols=reach(problem)), tile, "turns")
        plan = replace(plan, programs=tiles, turns=problem.turns)
    else:
        plan = tiles_of(problem, tile)
    per_sm = tile.programs_per_sm or 1
    programs = max(1, min(plan.programs, _walkers(device.sms * per_sm), _most_partials(problem)) // apart)
    stages = _stages_that_fit(tile, per_sm, plan.rows * plan.blocks * plan.block * column, device)
    return replace(plan, programs=programs * apart, stages=stages)


def _walkers(resident: int) -> int:
    """How many of the programs that can run at once are to walk: a power of two, if that leaves few of them out.

    Their partials are then summed at once, where the last few would take a second step.
    """
    power = 1 << (resident.bit_length() - 1)
    return power if power >= in_force.thresholds().walking_share * resident else resident


def _wide(problem: Problem, device: Device, tile: Tile, column: int) -> Plan:
    """Split where all programs of a row can run at the same time, else stream."""
    stages = _stages_that_fit(tile, tile.programs_per_sm or 1, tile.cols * column, device)
    plan = _shared("split", problem, device, tile, tile.cols, stages)
    return stream_plan(problem) if plan is None or problem.per_lane else plan


def split_turns_plan(problem: Problem, device: Device, tile: Tile, column: int) -> Plan | None:
    """With the rows in registers."""
    stages = _stages_that_fit(tile, tile.programs_per_sm or 1, tile.cols * column, device)
    # fp32 is slower by sectors: 85 us against 79 at 2,048 x 10,001 (LayerNorm).
    return _in_turns("split_turns", problem, device, tile, tile.cols, stages, by_sector=problem.h.itemsize == 2)


def _shared(
    schedule: str, problem: Problem, device: Device, tile: Tile, columns: int, stages: int,
    turns: int = 1, vector: int = 1, each: int = 1,
) -> Plan | None:  # fmt: skip
    """Groups of programs that stay, one for each slice of a row; None where not even one can run at once.

    Where rows are taken in turns, each turn has as many groups as the others, so that all of a group's rows lie alike,
    and slices reach from where a `vector` of elements begins that a row may share with the one before. `each`: groups
    that may share a row of partial sums.
    """
    width = problem.cols if turns == 1 else problem.cols + vector - 1
    per_sm, slices = tile.programs_per_sm or 0, cdiv(width, columns)
    most = _most_partials(problem)
    most = max(most, each * (most // turns * turns))  # those that share one have rows that lie alike
    groups = min(problem.rows * problem.lanes, device.sms * per_sm // slices, most) // turns * turns
    if not device.cooperative or groups == 0:
        return None
    registers = device.registers // (per_sm * tile.warps * 32) // 8 * 8  # they are handed out in eights
    plan = Plan(schedule, 1, columns, tile.warps, groups * slices, 1, stages, slices, min(255, registers))
    return replace(plan, together=True, turns=turns)


def _stages_that_fit(tile: Tile, programs_per_sm: int, tile_bytes: int, device: Device) -> int:
    """Each stage but the last keeps a tile of every input in shared memory, beside what reductions need of it."""
    scratch = 1024 + 4 * tile.rows * (tile.block or tile.cols)
    room = device.shared // programs_per_sm - scratch
    return max(1, min(tile.stages, 1 + room // tile_bytes))
