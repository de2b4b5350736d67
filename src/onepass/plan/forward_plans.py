"""A forward's plan: which schedule, which tile, how many programs.

It is batch-invariant: schedule, threads a row and elements a thread follow from the columns, dtypes and alignment
alone, in a Choice. The row count chooses how many rows a program takes and how many programs there are, nothing else,
so a row's bits never depend on its company.
"""

from __future__ import annotations

from dataclasses import replace

from onepass.plan import in_force, row_counts
from onepass.plan.affine import (
    affine_first,
    affine_late,
    least_in_turns,
    most_prompt_rows,
    most_sums_first,
    prompt,
    sum_first,
)
from onepass.plan.chains import chains_of, most_spread, spread
from onepass.plan.device import Device
from onepass.plan.forward_choices import (
    choice_without_threads,
    forward_choice,
    held_bytes,
    is_paired,
    most_sums_walked,
    suits_shared_memory,
)
from onepass.plan.limits import least_limited, limited
from onepass.plan.plans import (
    CLUSTER,
    REGISTERS,
    Choice,
    Plan,
    block_of,
    cdiv,
    itemsize,
    kind_of,
    piece_of,
    power_of_two,
    slot_of,
    slots_of,
    stream_plan,
    tiles_of,
    vector_of,
)
from onepass.plan.tiles import Tile
from onepass.plan.tuned import tuned_choice
from onepass.spec import Problem


def forward_plan(problem: Problem, device: Device, centred: bool, align: int) -> Plan:
    plan = prompt(problem, device, _planned(problem, device, centred, align), centred, align)
    return limited(problem, device, sum_first(problem, device, plan, centred, align), centred, align)


def row_counts_apart(problem: Problem, device: Device, centred: bool, align: int) -> tuple[int, ...]:
    """Row counts of which each may get a kernel of its own, and no other row count further ones."""
    how = (problem, device, centred, align)
    least = [least_by_thread(problem, device, align), least_in_slices(*how), least_in_chains(*how)]
    least += [most_sums_first(problem, device) + 1, *least_in_turns(problem, device)]
    least += least_limited(problem, device, centred)
    return row_counts.row_counts_apart(most_prompt_rows(problem, device), *least)


def _chosen(problem: Problem, device: Device, centred: bool, align: int) -> Choice:
    return tuned_choice("forward", problem, device, centred, align) or forward_choice(problem, device, centred, align)


def _planned(problem: Problem, device: Device, centred: bool, align: int) -> Plan:
    choice = _chosen(problem, device, centred, align)
    tile = choice.tile
    if choice.schedule == "threads":
        if problem.dense and device.gluon and problem.rows >= least_by_thread(problem, device, align):
            return _by_threads(problem, tile, align)
        choice = replace(choice_without_threads(problem, device, centred, align), tile=tile)
    if choice.schedule == "odd" and not _few_odd_rows(problem, device, choice.schedule):
        plan = _through_shared_memory(problem, device, tile, centred)
        if plan is not None:
            return plan
    if choice.schedule == "flat" and problem.dense and not _few_odd_rows(problem, device, choice.schedule):
        plan = _flat(problem, device, tile, centred)
        if plan is not None:
            return plan
    if choice.schedule in ("tile", "odd", "flat"):
        plan = tiles_of(problem, _batch_invariant(problem, tile, centred, align))
        plan = _at_once(problem, plan, align) if centred else plan
        plan = spread(problem, device, plan, chains_of(problem, tile, align))
        shared = _shared(problem, device, plan, centred, align)
        if shared.slices > 1:
            return shared
        if tile.late is None:
            return affine_first(problem, device, plan, centred, align)
        return affine_late(problem, device, tile, plan, centred, align)
    if choice.schedule == "stream":
        return _held_or_walked(problem, device, tile, centred, align)
    if choice.schedule == "cluster":
        if device.clusters:
            return _clustered(problem, tile)
        tile = in_force.thresholds().summed_slice
    resident = device.sms * (tile.programs_per_sm or 0)
    columns = tile.cols if choice.schedule == "odd_split" else _slice(problem, tile)
    if problem.walked or not device.cooperative or cdiv(problem.cols, columns) > resident:
        return stream_plan(problem)
    plan = _sliced(problem, device, tile, columns)
    return _in_shared_memory(problem, device, tile, plan) if choice.schedule == "odd_split" else plan


def _few_odd_rows(problem: Problem, device: Device, schedule: str) -> bool:
    """Whether rows for kernels/odd.py or flat.py are so few that tile.py is faster, which gives them the same bits."""
    t, elements = in_force.thresholds(), problem.rows * problem.lanes * problem.cols
    return elements < device.sms * (t.odd_elements if schedule == "odd" else t.flat_elements)


def _through_shared_memory(problem: Problem, device: Device, tile: Tile, centred: bool) -> Plan | None:
    """Programs that stay, as many as run at once; RMSNorm's, which need fewer registers, a third more for few rows.

    None where the GPU has no room.
    """
    rows, block, per_sm = problem.rows * problem.lanes, block_of(tile, problem), tile.programs_per_sm or 1
    plan = Plan("odd", 1, block, tile.warps, rows, cdiv(problem.cols, block), tile.stages)
    slots = tile.stages * (1 if problem.residual is None else 2)
    room = device.shared // (slots * slot_of(plan, problem) * problem.x.itemsize + 1024)
    if room == 0 or not device.gluon or not suits_shared_memory(problem):
        return None
    most = min(room, per_sm if centred else per_sm * 4 // 3)
    few = rows < in_force.thresholds().odd_rounds * device.sms * per_sm
    registers = min(REGISTERS, device.registers // (32 * tile.warps * most) // 8 * 8)  # they are handed out in eights
    return replace(plan, programs=min(rows, device.sms * (most if few else min(most, per_sm))), registers=registers)


def _flat(problem: Problem, device: Device, tile: Tile, centred: bool) -> Plan | None:
    """Some rows at once through shared memory, by a warp. None where the kernel is not for it."""
    if not device.gluon or not suits_shared_memory(problem):
        return None
    t, block, alone = in_force.thresholds(), block_of(tile, problem), problem.residual is None
    blocks = cdiv(problem.cols, block)
    stages = 2 if alone and (centred or problem.cols >= t.flat_staged_from) else 1
    held = blocks * block // 32 * (1 if alone else 2)
    rows = next(rows for rows in (8, 4, 2, 1) if rows == 1 or rows * held * stages <= t.flat_held)
    plan = Plan("flat", rows, block, 1, cdiv(problem.rows, rows), blocks, stages)
    if stages == 1:
        return plan
    room = device.shared // (stages * slot_of(plan, problem) * problem.x.itemsize + 1024)
    per_sm = min(room, t.flat_per_sm)
    registers = min(REGISTERS, device.registers // (32 * per_sm) // 8 * 8)
    return replace(plan, programs=min(plan.programs, device.sms * per_sm), registers=registers)


def least_by_thread(problem: Problem, device: Device, align: int) -> int:
    """The fewest short rows that have a thread each."""
    t = in_force.thresholds()
    shortest, wider, in_pieces, in_pairs = t.threads_rows
    short = problem.cols <= t.threads_shortest
    if align > 1:
        return device.sms * (in_pairs if is_paired(problem, align) and not short else in_pieces)
    return device.sms * (shortest if short else wider)


def _by_threads(problem: Problem, tile: Tile, align: int) -> Plan:
    """A thread a row, which adds it up as the threads would that the tile has for it."""
    t, block = in_force.thresholds(), block_of(tile, problem)
    warps = next(warps for most, warps in t.threads_warps if problem.cols <= most)
    side_by_side = min(align, max(1, tile.rows * block // (32 * tile.warps)))
    blocks, programs = cdiv(problem.cols, block), cdiv(problem.rows, 32 * warps)
    return Plan("threads", 32 * warps, block, warps, programs, blocks, unit=side_by_side)


def _at_once(problem: Problem, plan: Plan, align: int) -> Plan:
    """The plan, with both of LayerNorm's moments found in one walk over the row, where that is faster."""
    whole = piece_of(problem.x, align) == 16 and held_bytes(problem) == 2 and plan.rows == 1
    wide = problem.cols >= in_force.thresholds().at_once_from
    return replace(plan, at_once=16 // problem.x.itemsize) if wide and whole else plan


def _held_or_walked(problem: Problem, device: Device, tile: Tile, centred: bool, align: int) -> Plan:
    """Rows that are walked where they are many; few of them are held, all their loads in flight at once, and so are
    very many sums with a residual.

    Either way a thread has the same elements, and adds them up in the same order, so a row's bits are the same.
    """
    t, block, rows = in_force.thresholds(), block_of(tile, problem), problem.rows * problem.lanes
    few = rows <= device.sms * t.held_per_sm
    most_walked = most_sums_walked(problem, device, centred, align) if tile == t.held_sum_tile else None
    if few or (most_walked is not None and rows > most_walked):
        held = Plan("tile", 1, block, tile.warps, rows, cdiv(problem.cols, block), as_walked=True)
        held = _shared(problem, device, held, centred, align)
        # What is asked for early: the row, or both that make it and their sum, and weight and bias.
        row = problem.x.itemsize if problem.residual is None else 4 + problem.residual.itemsize
        column = row + itemsize(problem.weight) + itemsize(problem.bias)
        registers = held.elements * column // 4 + t.registers_beside[centred]
        # Sums have been seen to fit.
        if most_walked is not None or registers <= min(REGISTERS, device.registers // (32 * held.warps)):
            return held if few else affine_first(problem, device, held, centred, align)
    return Plan("stream", 1, block, tile.warps, rows)


def _clustered(problem: Problem, tile: Tile) -> Plan:
    """A cluster a row, however many there are."""
    rows, block = problem.rows * problem.lanes, tile.block or tile.cols
    blocks, registers = cdiv(problem.cols, block * CLUSTER), tile.registers
    return Plan("tile", 1, block, tile.warps, rows * CLUSTER, blocks, slices=CLUSTER, unit=block, registers=registers)


def _slice(problem: Problem, tile: Tile) -> int:
    """The columns that a program has of a row which it shares: whole blocks, and as many bytes of every dtype."""
    block = block_of(tile, problem)
    return block * max(1, tile.cols * 2 // held_bytes(problem) // block)


def _sliced(problem: Problem, device: Device, tile: Tile, columns: int) -> Plan:
    """A program for each slice of each row. Weight and bias are asked for late, unless programs are few."""
    block = block_of(tile, problem)
    slices = cdiv(problem.cols, columns)
    plan = Plan("split", 1, block, tile.warps, problem.rows * problem.lanes * slices, columns // block, slices=slices)
    if tile.late is None or plan.programs <= device.sms * tile.late:
        return replace(plan, affine_first=True)
    return replace(plan, ahead=min(plan.blocks, tile.ahead), registers=tile.registers)


def _in_shared_memory(problem: Problem, device: Device, tile: Tile, plan: Plan) -> Plan:
    """The plan for slices that come and go, of few rows; of many by programs that stay, with the same bits."""
    rows = problem.rows * problem.lanes
    walk = replace(plan, schedule="odd_split", stages=3, affine_first=False, ahead=None, together=True)
    room = device.shared // (slots_of(problem) * slot_of(walk, problem) * problem.x.itemsize + 2048)
    per_sm = min(room, tile.programs_per_sm or 1)
    groups = device.sms * per_sm // plan.slices
    few = rows < _least_in_slices(device, plan.slices)
    if few or groups == 0 or not device.gluon or not suits_shared_memory(problem):
        return plan
    # Each quarter of an SM has its part of the warps and of the registers, which are handed out in eights.
    registers = min(REGISTERS, device.registers // 4 // (32 * cdiv(per_sm * tile.warps, 4)) // 8 * 8)
    groups = cdiv(rows, cdiv(rows, groups))
    return replace(walk, programs=groups * plan.slices, registers=registers)


def least_in_slices(problem: Problem, device: Device, centred: bool, align: int) -> int:
    """The fewest wide odd rows whose slices wait in shared memory."""
    choice = _chosen(problem, device, centred, align)
    return _least_in_slices(device, cdiv(problem.cols, choice.tile.cols)) if choice.schedule == "odd_split" else 1


def _least_in_slices(device: Device, slices: int) -> int:
    return device.sms * in_force.thresholds().odd_shared_few // slices + 1


def least_in_chains(problem: Problem, device: Device, centred: bool, align: int) -> int:
    """The fewest rows whose chains share a warp."""
    choice = _chosen(problem, device, centred, align)
    chains = chains_of(problem, choice.tile, align) if choice.schedule == "tile" else 1
    if chains == 1:
        return 1
    alone = _batch_invariant(replace(problem, rows=1), choice.tile, centred, align)
    even = cdiv(problem.cols, block_of(choice.tile, problem)) % chains == 0
    return most_spread(device, alone.warps * chains, even) + 1


def _shared(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan for a program a row or, where wide rows are few, for a cluster of programs that have its warps between
    them. Either way a row lies over the same threads, and its bits are the same.
    """
    few = problem.rows * problem.lanes <= _most_shared(problem, device, plan, centred, align)
    if not device.clusters or not few or plan.rows > 1 or not _worth_sharing(problem, plan, centred, align):
        return plan
    # The compiler must lay a row out by vectors of a known width: tensors of other widths may change it. Groups of
    # columns would have to lie in one program, and two launches to agree on what the first leaves in the L2.
    sums = (problem.residual, problem.sum)
    # A bias changes nothing where rows begin on 16 bytes; of others nobody looked.
    bias = None if piece_of(problem.x, align) == 16 else problem.bias
    sizes = {dtype.itemsize for dtype in (problem.x, problem.y, problem.weight, bias, *sums) if dtype is not None}
    if len(sizes) > 1 or problem.group > 1 or problem.quantized in ("tensor", "amax"):
        return plan
    vector = min(align, vector_of(problem, align), plan.block // (32 * plan.warps))
    return replace(
        plan, block=plan.block // CLUSTER, warps=plan.warps // CLUSTER, programs=plan.programs * CLUSTER,
        slices=CLUSTER, unit=32 * vector,
    )  # fmt: skip


def _worth_sharing(problem: Problem, plan: Plan, centred: bool, align: int) -> bool:
    """Whether a row has so many warps, or its threads so many loads each, that a cluster is sooner done with it."""
    t, piece = in_force.thresholds(), piece_of(problem.x, align)
    if plan.warps >= t.shared_warps or plan.warps < CLUSTER or problem.quantized:
        return plan.warps >= t.shared_warps
    loads = plan.elements * problem.x.itemsize // piece * (1 if problem.residual is None else 2)
    return loads >= (t.shared_centred_singles if centred and piece == problem.x.itemsize else t.shared_loads)


def _most_shared(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> int:
    """The most rows that are few."""
    t, width = in_force.thresholds(), plan.blocks * plan.block
    if piece_of(problem.x, align) == 16:
        if plan.as_walked or width > t.shared_widest_from:
            if problem.residual is not None or problem.quantized:
                return t.shared_widest_rows
            columns = problem.cols * problem.x.itemsize // 2
            return next(rows for most, rows in t.shared_widest_alone[centred] if columns <= most)
        return t.shared_summed_fp32_rows if problem.residual is not None and problem.x.itemsize == 4 else t.shared_rows
    if problem.quantized:
        return 0
    if width < t.shared_wide_odd_from:
        return t.shared_odd_rows
    return t.shared_singles_per_sm * device.sms if align == 1 else t.shared_widest_rows


def _batch_invariant(problem: Problem, tile: Tile, centred: bool, align: int) -> Tile:
    """The tile for many or for few short rows. A row lies over the same threads in both, so its bits are the same."""
    t = in_force.thresholds()
    if tile.rows == 1 or problem.rows >= _least_of_full_tiles(problem, align):
        return tile
    block, vector = block_of(tile, problem), vector_of(problem, align)
    if align < 16 // problem.x.itemsize:
        # Rows that do not begin at 16 bytes keep the full tile, since how the compiler lays these out depends on their
        # number; but one that is loaded element by element has a warp, alone or not.
        few = t.small_programs if block < 64 else t.lone_programs[kind_of(problem, centred)]
        alone = block >= 32 and align == 1 and cdiv(problem.rows, tile.rows) < few
        return replace(tile, rows=min(tile.rows, tile.warps)) if alone else tile
    # What a thread holds side by side: a vector, or what the full tile leaves it.
    vector = min(vector, max(1, tile.rows * block // (32 * tile.warps)))
    # The compiler spreads a row over as many threads as it has vectors, but no further than the program's warps reach.
    threads_per_row = min(max(1, block // vector), 32 * tile.warps)
    warps = max(1, threads_per_row // 32)
    rows = min(tile.rows, max(1, 32 * warps * vector // block))
    if rows > 1 or (block == vector * threads_per_row and _short_enough(problem, warps, centred)):
        most = max(rows, t.small_elements // power_of_two(problem.cols))
        most_warps = t.small_warps // warps
        while cdiv(problem.rows, rows) > t.small_programs and 2 * rows <= most and 2 * warps <= most_warps:
            warps, rows = 2 * warps, 2 * rows
    return replace(tile, rows=rows, warps=warps)


def _least_of_full_tiles(problem: Problem, align: int) -> int:
    """The fewest rows that have the tile as the tables have it."""
    t = in_force.thresholds()
    if problem.cols * problem.x.itemsize <= t.shortest_bytes:
        return t.shortest_min_rows
    short = problem.cols * held_bytes(problem) <= t.shorter_bytes and piece_of(problem.x, align) == 16
    return t.shorter_min_rows if short and not problem.quantized else t.block_row_min_rows


def _short_enough(problem: Problem, warps: int, centred: bool) -> bool:
    """Whether rows that fill a warp or two each are so short, or so many, that several in a program are faster."""
    t, size = in_force.thresholds(), problem.cols * problem.x.itemsize
    wider = t.short_bytes * 3 // 2
    if centred and problem.x.itemsize == 4:
        return size <= wider and problem.rows >= t.short_fp32_rows
    if centred:
        return size <= t.short_bytes and problem.rows >= t.short_rows
    return (size <= t.short_bytes and warps == 1) or (size <= wider and problem.rows >= t.short_rows)
