"""Which row counts have kernels of their own, so that all can be compiled with the first call."""

from __future__ import annotations

import itertools

from onepass.plan import in_force


def row_counts_apart(prompt: int = 0, *least: int) -> tuple[int, ...]:
    """Row counts of which each may get kernels of its own, and no other row count further ones.

    `prompt`: the most rows of a forward that count as few, which follow from their width; `least`: from how many on
    others are planned otherwise, for the same reason.
    """
    t = in_force.thresholds()
    most = {
        t.shared_rows,
        t.shared_summed_fp32_rows,
        t.shared_odd_rows,
        t.shared_widest_rows,
        t.few_lone[0],
        t.few_rows,
        t.lone_rows,
    }
    most |= {rows for kind in t.shared_widest_alone for _, rows in kind}
    most |= {tile.rows for tile in t.few_split_tiles}
    most |= {rows for _, rows in t.few_shared_rows} | {rows for rows, _ in t.few_columns[:-1]}
    tiles_of_few = (
        *t.turns_few,
        *t.summed_turns_few,
        *t.backward_few,
        *t.centred_backward_few,
        *t.summed_backward_few,
        *t.backward_short,
    )
    tiles_of_few += (*t.summed_backward_short, *t.centred_backward_short, *t.centred_fp32_backward_short)
    tiles_of_few += t.summed_turns_of_16_bits_few
    tiles_of_many = (*t.turns_of_fp32_many, *t.summed_turns_of_fp32_many, *itertools.chain(*t.backward_between_sectors))
    most |= {rows - 1 for *_, rows, _ in (*tiles_of_few, *tiles_of_many)}
    most |= {t.short_rows - 1, t.short_fp32_rows - 1} | {rows - 1 for rows in least}
    # As many rows as leave small tiles alone, and twice as many again and again, have each number of these together.
    doubled = itertools.takewhile(lambda rows: rows < t.shortest_min_rows, (t.small_programs << n for n in range(32)))
    most |= {each - 1 + more for each in (prompt, prompt // 2) for more in (0, 1) if each > 0}
    whole_from = (t.block_row_min_rows, t.shorter_min_rows, t.shortest_min_rows)
    most |= {rows - 1 + more for rows in whole_from for more in (-1, 0)}
    return 1, *(rows + 1 for rows in sorted(most)), *doubled
