"""Which schedule and which tile a forward's rows have, however many they are: by the thresholds."""

from __future__ import annotations

from onepass.plan import in_force
from onepass.plan.device import Device
from onepass.plan.plans import (
    Choice,
    between,
    cdiv,
    fitting,
    itemsize,
    kind_of,
    piece_of,
    power_of_two,
    snug,
)
from onepass.plan.tiles import Between, Tile
from onepass.spec import Problem


def forward_choice(problem: Problem, device: Device, centred: bool, align: int) -> Choice:
    """The choice, unless it was tuned."""
    choice, t = choice_without_threads(problem, device, centred, align), in_force.thresholds()
    piece, kind = piece_of(problem.x, align), kind_of(problem, centred)
    widest = t.threads_eights_to if piece == 8 else t.threads_to
    if is_paired(problem, align):
        widest = t.threads_paired_to
    most = widest[kind] if piece < 16 else 0
    short = t.threads_from <= problem.cols <= most and device.gluon and _is_of_one_size(problem)
    return Choice("threads", choice.tile) if short else choice


def choice_without_threads(problem: Problem, device: Device, centred: bool, align: int) -> Choice:
    t = in_force.thresholds()
    held = held_bytes(problem)
    plain = problem.residual is None and not problem.quantized
    if device.gluon and piece_of(problem.x, align) == 2 and suits_shared_memory(problem):
        flat = fitting(t.flat_tiles, problem.cols)
        if flat is not None and problem.cols >= t.flat_from[kind_of(problem, centred)]:
            return Choice("flat", flat)
    if piece_of(problem.x, align) <= 4:
        odd = fitting(t.odd_centred_forward_tiles if centred else t.odd_forward_tiles, problem.cols)
        if held == 4 and not centred:
            odd = between(t.odd_summed_between, problem.cols) or odd
        if problem.x.itemsize == 4:
            whole = t.odd_fp32_between if problem.residual is None else t.odd_summed_fp32_between
            odd = between(t.odd_centred_fp32_between if centred else whole, problem.cols) or odd
        if piece_of(problem.x, align) == 2 and (centred or plain):
            odd = between(t.single_centred_between if centred else t.single_between, problem.cols) or odd
        if is_paired(problem, align):
            odd = between(t.paired_between[kind_of(problem, centred)], problem.cols) or odd
        if odd is not None:
            return Choice("tile", odd)
    if problem.quantized and held == 2 and not centred and align >= 8 and problem.cols >= t.quantized_from:
        tiles = {"delayed": t.merged_tiles, "token": t.row_scaled_tiles, "amax": t.amax_tiles}.get(
            problem.quantized, t.quantized_tiles
        )
        tile = fitting(tiles if problem.group == 1 else t.grouped_tiles, problem.cols)
        if tile is not None:
            return Choice("tile", snug(tile, problem.cols, align))
    columns, piece = problem.cols * held // 2, piece_of(problem.x, align)
    tile = fitting(t.centred_forward_tiles if centred else t.forward_tiles, columns)
    wider_weight = itemsize(problem.weight) > held and plain and not centred and piece == 16
    if wider_weight:
        tile = between(t.wider_weight_between, columns) or tile
    if plain and held == 2 and piece >= 8:
        tile = between(t.short_centred_between if centred else t.short_between, columns) or tile
    if plain and not centred and piece == 16:
        tile = between(t.plain_between if held == 2 else t.plain_fp32_between, columns) or tile
    if plain and held == 2 and not centred and 4 <= piece <= 8:
        tile = between(t.half_plain_between, columns) or tile
        tile = between(t.paired_plain_between if piece == 4 else (), columns) or tile
    if plain and centred and piece == 8:
        tile = between(t.centred_eights_between if held == 2 else t.centred_fp32_eights_between, columns) or tile
    if problem.residual is not None and not problem.quantized and not centred:
        tile = between(_summed_between(problem, piece), columns) or tile
    if centred and plain and held == 2 and piece > 4:
        tile = between(t.late_centred_between, columns) or tile
    if centred and plain and held == 4 and piece == 16:
        tile = between(t.centred_fp32_between, columns) or tile
    if centred and plain and held == 2 and piece == 4 and problem.cols >= t.half_odd_centred_from:
        tile = fitting(t.half_odd_centred_tiles, columns) or tile
    single = piece == 2 or (centred and plain and piece == problem.x.itemsize)
    if (
        device.gluon
        and piece == 2
        and suits_shared_memory(problem)
        and problem.cols >= t.odd_from[kind_of(problem, centred)]
    ):
        through = fitting(t.odd_centred_tiles if centred else t.odd_tiles, problem.cols)
        if through is not None:
            return Choice("odd", through)
        if problem.cols >= t.odd_shared_from and device.cooperative and not problem.walked:
            wide = problem.cols >= t.odd_shared_wide_from[kind_of(problem, centred)]
            return Choice("odd_split", t.odd_wide_slice if wide else t.odd_slice)
    if single and plain and problem.cols >= t.single_wide_from[centred]:
        single_tile = fitting(t.single_centred_tiles if centred else t.single_tiles, columns)
        if single_tile is not None:
            return Choice("tile", single_tile)
        if centred:
            return Choice("split", _forward_slice(problem, centred, align))
    if tile is None and centred and piece > problem.x.itemsize and not problem.quantized:
        tile = fitting(t.wide_centred_tiles, columns)
    if tile is None and not centred and held == 4:
        tile = fitting((t.wide_forward_tile,), columns)
    if tile is None and not centred and held == 2 < piece < 16 and plain:
        tile = fitting((t.wide_odd_tile,), columns)
    if tile is None and not centred and plain and (piece == 16 or held == 2 < piece):
        as_it_is = fitting(t.plain_tiles, columns) if held == 2 and piece == 16 else None
        if as_it_is is not None:
            return Choice("tile", as_it_is)
        tile = fitting((t.wide_plain_tile,), columns) if columns >= t.wide_plain_from else None
        if columns > t.wide_plain_tile.cols:
            return Choice("split", _forward_slice(problem, centred, align))
    if tile is not None:
        return Choice("tile", _single(problem, centred) if single else snug(tile, problem.cols, align))
    if most_sums_walked(problem, device, centred, align) is not None:
        return Choice("stream", t.held_sum_tile)
    # What decides is the bytes of a row that are in flight.
    flowing = problem.x.itemsize + itemsize(problem.residual) + itemsize(problem.sum)
    stream = fitting(t.centred_streams if centred else t.streams, problem.cols * flowing // 2)
    if stream is not None:
        return Choice("stream", stream)
    if piece == 16 and not problem.quantized and problem.residual is not None:
        shared = fitting(t.summed_cluster_tiles if problem.x.itemsize == 2 else t.summed_fp32_cluster_tiles, columns)
        if shared is not None:
            return Choice("cluster", shared)
    return Choice("split", _forward_slice(problem, centred, align))


def _summed_between(problem: Problem, piece: int) -> Between:
    t = in_force.thresholds()
    if problem.x.itemsize == 2:
        return t.summed_between if piece == 16 else ()
    return {16: t.summed_fp32_between, 8: t.summed_fp32_eights_between}.get(piece, ())


def most_sums_walked(problem: Problem, device: Device, centred: bool, align: int) -> int | None:
    """More sums with a residual than these are held; None where however many are not."""
    if problem.residual is None or centred or piece_of(problem.x, align) < 16 or not suits_shared_memory(problem):
        return None
    sums = in_force.thresholds().held_sums
    return next((device.sms * rows // 2 for first, last, rows in sums if first <= problem.cols <= last), None)


def is_paired(problem: Problem, align: int) -> bool:
    """Whether its elements can be loaded two at a time, and no more."""
    return problem.x.itemsize == 2 == align


def suits_shared_memory(problem: Problem) -> bool:
    """Whether kernels/odd.py, odd_split.py and flat.py compute it, if its rows begin anywhere: of 16 bits all."""
    return _is_of_one_size(problem) and problem.x.itemsize == 2


def _is_of_one_size(problem: Problem) -> bool:
    """Whether it is a plain norm whose tensors have elements of as many bytes, weight and bias aside."""
    alone = problem.residual is None and problem.sum is None
    added = problem.residual == problem.sum == problem.x
    plain = (alone or added) and not problem.quantized and not problem.per_lane
    return plain and problem.y.itemsize == problem.x.itemsize


def held_bytes(problem: Problem) -> int:
    """Bytes of an element, as a forward holds it: a sum with the residual is in fp32."""
    return problem.x.itemsize if problem.residual is None else 4


def _forward_slice(problem: Problem, centred: bool, align: int) -> Tile:
    t = in_force.thresholds()
    if piece_of(problem.x, align) == 2:
        return t.odd_forward_slice
    if problem.x.itemsize == piece_of(problem.x, align) == 4:
        return t.odd_centred_fp32_slice if centred else t.odd_fp32_slice
    if held_bytes(problem) == 4:
        return t.summed_slice
    if piece_of(problem.x, align) == 4:
        return t.half_odd_forward_slice
    return t.centred_forward_slice if centred else t.forward_slice


def _single(problem: Problem, centred: bool) -> Tile:
    t, cols = in_force.thresholds(), problem.cols
    warps = min(16, max(1 if centred else 2, power_of_two(cdiv(cols, 32 * t.single_elements[centred]))))
    return Tile(cols, 1, warps, block=32 * warps)
