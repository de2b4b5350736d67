"""Where a backward's schedule ends and the next begins, and which tile serves which width."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.plan.tiles import Between, FewLimit, Tile


@dataclass(frozen=True)
class BackwardThresholds:
    #: Backward: the tile's rows times columns is also the size of dW's accumulator in registers. One warp where it can
    #: hold the row: it waits for no other. At 20,000 x 64 6.9 us with four warps against 7.7 with eight, LayerNorm 8.6
    #: against 10.0; at 16 columns 4.5 with 32 rows a program against 5.2 with 16. Narrow blocks reach less far beyond a
    #: row: 44.8 us against 50.9 in one of 128 columns at 300,000 x 80, 6.9 against 8.2 at 10,000. Up to 192
    #: columns too: 53.9 us against 57.5 in one of 256 at 203,125 x 160, LayerNorm 57 against 74, 8.3 against 9.3 at
    #: 7,500 x 192, with a residual 5.1 against 5.4 at 2,400.
    backward_tiles: tuple[Tile, ...] = (
        Tile(16, 32, 2, 8, 4),
        Tile(24, 16, 2, 8, 3, block=16),
        Tile(32, 16, 2, 8, 4),
        Tile(64, 32, 4, 2, 4),
        Tile(96, 16, 4, 4, 3, block=32),
        Tile(128, 4, 1, 8, 4),
        Tile(192, 4, 1, 8, 3, block=64),
        Tile(224, 4, 1, 8, 3, block=256),
        Tile(256, 2, 1, 8, 4),
        Tile(384, 2, 1, 8, 3, block=128),
        Tile(512, 4, 2, 4, 4),
        Tile(768, 1, 1, 8, 3, block=256),
        Tile(1024, 2, 2, 4, 3),
        Tile(1280, 1, 2, 4, 4, block=512),
        Tile(2400, 1, 2, 4, 3, block=512),
        Tile(3072, 2, 4, 2, 3, block=1024),
        Tile(3840, 1, 4, 2, 3, block=1024),
        Tile(4096, 2, 8, 1, 3),
        Tile(5120, 1, 4, 2, 3, block=1024),
        Tile(6144, 1, 8, 1, 4, block=2048),
        Tile(6656, 1, 8, 1, 4, block=2048, narrows=False),
        Tile(8192, 1, 16, 1, 3),
        Tile(16384, 1, 8, 1, 3, block=2048),
    )
    #: With a residual, whose gradient arrives beside, fewer rows a program or a stage less leave room for a third one:
    #: 71.8 us against 77.6 at 13,981 x 2,400, 18.9 against 20.8 at 2,500; 7.3 against 8.1 at 2,500 x 512; 2 to 3 % at
    #: 1,280, 2,688, 3,072 and 6,144 columns, where RMSNorm alone is slower by as much and more. In narrower blocks 134
    #: us against 122 at 14,204 x 4,224, 28 against 25.6 at 2,000 x 4,480.
    summed_backward_tiles: tuple[Tile, ...] = (
        *backward_tiles[:4],
        Tile(96, 8, 1, 4, 4, block=64),
        *backward_tiles[5:10],
        Tile(512, 2, 2, 4, 4),
        *backward_tiles[11:13],
        Tile(2048, 1, 2, 4, 3, block=512),
        Tile(2560, 1, 4, 2, 3, block=512),
        Tile(3072, 1, 4, 2, 3, block=1024),
        *backward_tiles[16:18],
        Tile(5120, 1, 4, 2, 3, block=1024, narrows=False),
        Tile(6144, 1, 8, 1, 3, block=2048),
        *backward_tiles[21:],
    )
    #: LayerNorm's accumulates dB too. With 16 warps it spills at 8,192 columns: 262 us against 203 with 8, at 16,384
    #: rows. One stage more hides its second sum: 198 us against 205 at 4,096 columns, 300 against 334 at 6,144. From
    #: 3,073 columns on one row in four warps, in blocks that stay as wide: 107 us against 113 by two in eight at 18,472
    #: x 3,248, 11.2 against 11.7 at 600 x 3,080, but 30.7 against 30.1 at 4,000 x 3,712. Of 256 columns in blocks of 64
    #: 13.3 against 15.2 at 20,000 rows, but 4.6 against 4.4 at 500.
    centred_backward_tiles: tuple[Tile, ...] = (
        *backward_tiles[:3],
        Tile(48, 16, 2, 4, 4, block=32),
        *backward_tiles[3:5],
        Tile(128, 16, 4, 2, 4, block=64),
        backward_tiles[6],
        Tile(256, 4, 1, 4, 4, block=64),
        Tile(336, 2, 1, 8, 4, block=128),
        Tile(384, 2, 1, 8, 4, block=256),
        Tile(504, 1, 1, 8, 4, block=128),
        Tile(512, 4, 2, 4, 3),
        Tile(639, 1, 1, 8, 3, block=256),
        Tile(896, 2, 2, 4, 4, block=512),
        *backward_tiles[12:16],
        Tile(3840, 1, 4, 2, 3, block=1024, narrows=False),
        Tile(4096, 2, 8, 1, 4),
        Tile(5120, 1, 4, 2, 3, block=1024),
        Tile(6144, 1, 8, 1, 4, block=2048),
        Tile(16384, 1, 8, 1, 3, block=2048),
    )
    #: From so many columns to so many, fewer rows than these have fewer programs, whose partials are soon summed: 5.8
    #: us against 6.4 at 1,000 x 768, LayerNorm 8.6 against 9.1 at 2,000, with a residual 8.0 against 8.5; 7.1 against
    #: 7.8 at 634 x 2,048, LayerNorm 8.6 against 9.8, 10.9 against 12.3 at 1,000 x 2,304, but 9.2 against 8.7 at 1,500 x
    #: 1,664; with a residual 7.8 against 8.5 at 634 x 1,920, but 9.7 against 9.3 at 1,000 x 2,048. RMSNorm of 4,096
    #: columns with as many warps and longer on their way, 18.1 against 18.7 at 2,048 rows, 14.4 against 15.3 at 1,500,
    #: in fp32 17.4 against 17.8 at 2,048 x 2,048; but 55.4 against 54.5 at 8,192 x 4,096.
    backward_few: tuple[tuple[int, int, int, Tile], ...] = (
        (641, 768, 2500, Tile(768, 1, 1, 4, 3, block=256)),
        (1793, 2400, 1280, Tile(2400, 1, 4, 2, 4, block=512)),
        (4096, 4096, 3072, Tile(4096, 1, 4, 2, 5, block=1024)),
    )
    centred_backward_few: tuple[tuple[int, int, int, Tile], ...] = backward_few[:2]
    #: LayerNorm's of nothing but x, of 16 bits, that begin on 16 bytes. Those of just so many columns, which fill their
    #: blocks: 31.9 us against 32.5 at 4,096 x 4,096, 196 against 198 at 32,768, 19.0 against 20.0 at 2,048; 17.9
    #: against 18.4 at 32,768 x 256, 6.9 against 7.1 at 5,000; 15.6 against 16.0 at 8,192 x 768, 25.1 against 25.9 at
    #: 16,384. But 107 against 105 at 16,384 x 4,000, 61.5 against 60.1 at 150,000 x 240, 22.7 against 17.4 at 32,768 x
    #: 128 in fp32. A warp's rows in narrow blocks, 64.5 against 73.6 at 838,860 x 40, 12.9 against 14.2 at 100,000, 3.9
    #: against 4.1 at 2,000; but in fp32 62.3 against 60.8 at 699,050 x 24. And blocks that stay wide, with a stage
    #: more: 58.4 against 76.1 at 5,152 x 6,512, 56.7 against 64.9 at 5,242 x 6,400, 58.6 against 67.4 at 4,681 x 7,168,
    #: 2 to 10 % at 1,000 rows; but 67.0 against 62.8 at 4,100 x 8,184, in fp32 56.4 against 55.0 at 4,228 x 3,968.
    centred_backward_between: Between = (
        (33, Tile(48, 8, 1, 8, 4, block=16)),
        (256, Tile(256, 4, 1, 4, 4, block=128)),
        (768, Tile(768, 1, 2, 4, 5, block=256)),
        (4096, Tile(4096, 1, 8, 1, 5, block=2048)),
        (6145, Tile(7936, 1, 8, 1, 4, block=2048, narrows=False)),
    )
    #: Dense rows of 16 bits of which each second one begins in the middle of 32 bytes, as memory is read, RMSNorm's,
    #: LayerNorm's and those with a residual, where they are many: a row a warp in narrow blocks. 100.8 us against 107.7
    #: at 137,939 x 472, 20.9 against 22.2 at 20,000 x 504, 101 against 106 at 63,976 x 1,016; LayerNorm 104 against 131
    #: at 100,308 x 648, 107 against 118 at 125,000 x 520; with a residual 130 against 143 at 128,968 x 504, 131 against
    #: 146 at 91,292 x 712. Of 2,000 rows 2 to 15 % slower, with a residual of 520 and 584 columns 0 to 3; and where all
    #: rows begin on 32 bytes level: 105 and 106 at 137,939 x 496, 90 and 88 at 400 columns.
    backward_between_sectors: tuple[tuple[tuple[int, int, int, Tile], ...], ...] = (
        ((401, 1024, 16384, Tile(1024, 1, 1, 8, 4, block=128)),),
        ((513, 896, 16384, Tile(896, 1, 1, 8, 4, block=128)),),
        ((321, 512, 16384, Tile(512, 1, 1, 8, 4, block=128)), (641, 1024, 16384, Tile(1024, 1, 1, 8, 4, block=128))),
    )
    summed_backward_few: tuple[tuple[int, int, int, Tile], ...] = (
        backward_few[0],
        (1537, 1920, 1280, backward_few[1][-1]),
    )
    #: Short ones of 16 bits, from so many columns to so many, with fewer rows than these, in one warp: 5.5 us against
    #: 6.4 at 7,500 x 96, 4.6 against 4.9 at 64 columns, but 9.6 against 9.3 at 48,000; with a residual 6.1 against 8.3
    #: at 7,500 x 96, of which many have it too. LayerNorm 5.6 against 6.3 at 7,500 x 64, 8.9 against 9.8 at 20,000 x
    #: 128, 14.9 against 16.8 at 48,000; few of 65 columns and more in yet smaller programs, 3.9 against 4.3 at 500 x
    #: 80, and those of fp32.
    #: From 65 to 96 columns in narrower blocks: 9.1 us against 9.6 at 30,000 x 96, 4.7 against 5.0 at 5,000 x 72,
    #: LayerNorm 10.0 against 11.0 at 30,000 x 72; of 96, which fill them, 16.4 against 18.1 at 69,781, LayerNorm 17.9
    #: against 19.7, and 56.3 against 59.1 at 338,541. LayerNorm of 128 columns 19.4 against 21.6 at 69,781. Of 49 to 64
    #: columns more of them for many, 11.3 against 12.1 at 55,408 x 64, 99 against 110 at 1,000,000 x 56.
    backward_short: tuple[tuple[int, int, int, Tile], ...] = (
        (49, 64, 32768, Tile(64, 8, 1, 4, 4)),
        (65, 88, 32768, Tile(88, 8, 1, 4, 4, block=32)),
        (89, 96, 131072, Tile(96, 8, 1, 4, 4, block=32)),
    )
    summed_backward_short: tuple[tuple[int, int, int, Tile], ...] = backward_short[:1]
    centred_backward_short: tuple[tuple[int, int, int, Tile], ...] = (
        (65, 128, 1000, backward_tiles[5]),
        (49, 64, 32768, backward_short[0][-1]),
        (49, 64, 1 << 22, Tile(64, 8, 1, 8, 4)),
        (65, 88, 65536, backward_short[1][-1]),
        (89, 96, 1 << 20, Tile(96, 8, 1, 8, 3, block=32)),
        (97, 128, 131072, Tile(128, 8, 1, 4, 4, block=64)),
    )
    centred_fp32_backward_short: tuple[tuple[int, int, int, Tile], ...] = ((65, 128, 32768, backward_tiles[5]),)
    #: LayerNorm's that are wider would leave more partials than `partials_bytes`, or too few programs: 176 us in slices
    #: held in registers against 191 with as many programs as may be at 8,192 x 12,288, and 162 with 13 MB of partials.
    centred_backward_most: int = 8192
    #: What a program may hold of a row: x, dy, weight, and dW and dB in fp32, of the 256 KiB of an SM's registers.
    backward_row_bytes: int = 180 << 10
    backward_slice: Tile = Tile(2048, 1, 2, 4, 3)
    #: Loads of 2 bytes wait in registers, not in shared memory: a stage less leaves room for LayerNorm's sums, 56 us
    #: against 79 at 128 x 51,903. RMSNorm's are level.
    odd_backward_slice: Tile = Tile(2048, 1, 2, 4, 2)
    #: With a residual so many columns, of any dtype, are the most that one program takes: in turns 210 us against 244
    #: at 8,192 x 12,001, 48.3 against 50.2 at 2,048 x 8,193; others 143 against 164 at 8,192 x 8,704, 170 against 199
    #: at 10,368 columns, 194 against 199 at 12,288, 19 against 21 at 600 x 8,704; but 12.7 against 11.8 at 300.
    summed_backward_most: int = 8192
    #: LayerNorm's sums leave room for eight warps an SM, and one that has a slice for itself waits for no other: 229 us
    #: against 249 at 8,192 x 16,384, 489 against 506 at 4,096 x 65,536, but 575 against 555 at 2,048 x 131,072.
    centred_backward_slice: Tile = Tile(1024, 1, 1, 8, 3)
    #: It serves rows with a residual up to so many columns: 134 us against 136 at 4,096 x 16,384, 28.5 against 29.9 at
    #: 600; level at 20,480 and 32,768, but 535 against 506 at 65,536. RMSNorm's few up to twice as many: 11.7 us
    #: against 12.3 at 129 x 24,576, 13.8 against 14.2 at 32,768, but 19.1 against 19.0 at 49,152.
    summed_narrow_most: int = 16384
    few_narrow_most: int = 32768
    #: With more slices than these, a program waits for so many others that twice the warps pay, at half the elements
    #: each: 907 us against 960 at 2,048 x 262,144. It is the same at 64 slices, and worse at 32 (502 against 438).
    #: LayerNorm was not tried.
    many_slices: int = 64
    backward_slice_of_many: Tile = Tile(2048, 1, 4, 4, 4)

    #: RMSNorm's of so many columns and more that begin on 16 bytes wait in shared memory (kernels/ring.py), in the
    #: first of these slices of which a row has no more than `many_slices`: 768 us against 856 at 8,192 x 65,536, 781
    #: against 878 at 4,096 x 131,072, 784 against 896 at 2,048 x 262,144, 197 against 206 held at 8,192 x 16,384, 106
    #: against 127 at 8,448 columns, 19.3 against 20.3 at 600 x 12,288. One warp waits for no other, but four times
    #: as many slices take 950 us at 262,144 columns. With a residual, whose gradient arrives beside, 288 against 259.
    #: Dense ones at odd addresses in turns: 138 us against 155 by programs that share them at 4,096 x 20,001, 443
    #: against 555 at 2,048 x 131,074, 908 against 1,583 at 262,145 columns, 212 against 251 held at 8,192 x 16,001, 203
    #: against 238 at 8,192 x 8,001 in fp32, 53 against 56 at 89 x 111,055; but 18.6 against 17.8 at 600 x 8,193.
    #: Copies of 16 bytes by eight threads touch five sectors of 32 bytes where four have them, if rows begin in the
    #: middle of one. So programs that share rows take them in turns by sectors, unless so few groups of these are left
    #: that they are a smaller share of what could be: in a ring 130 us against 138 at 4,096 x 20,001, 127 against 135
    #: at 20,008 columns, 422 against 446 at 2,048 x 131,074, 194 against 203 at 8,192 x 8,001 in fp32; but 268 against
    #: 243 at 2,048 x 65,537, which have sixteen groups for 24. From registers LayerNorm's 171 against 177 at 4,096 x
    #: 20,001, with a residual 148 against 155 at 2,048 x 32,769.
    sector_share: float = 0.9
    ring_from: int = 8193
    rings: tuple[Tile, ...] = (Tile(1024, 1, 1, 16, 3), Tile(2048, 1, 2, 8, 3), Tile(4096, 1, 4, 4, 3))
    #: From so many columns on, those that do not begin on 128 bytes, of which slices begin in the middle of lines, have
    #: the last of these, with the fewest ends: 125 us against 132 at 2,000 x 39,560, 179 against 186 at 57,352 columns,
    #: 197 against 207 at 60,001; but 246 against 237 at 65,537, where so fewer programs would be at work. At 28,680 it
    #: is 96 against 93.
    ring_of_fewest_from: int = 32769
    #: Of fewer elements than these a ring is at work too late, and in registers they are sooner done: 10.9 us against
    #: 12.9 at 129 x 20,480, 14.4 against 16.3 at 400 x 12,288, 14.0 against 16.7 at 500 x 10,240, 14.2 against 15.9 at
    #: 129 x 32,768, in turns 16.3 against 18.4 at 128 x 33,001, 24.0 against 24.5 at 128 x 54,283; but 24.2 against
    #: 23.2 at 129 x 65,536, 36.1 against 35.5 at 256 x 54,283. In turns narrow ones gain sooner, by columns and
    #: elements: 18.2 against 19.9 at 300 x 17,961, level at 500 x 12,289.
    many_elements: int = 7 << 20
    ring_turns_elements: tuple[tuple[int, int], ...] = ((16384, 1), (24576, 1 << 22))
    #: LayerNorm's of 16 bits that begin on 32 bytes, in the first of them or, with more slices than `many_slices`, the
    #: last, wherever they begin: 402 us against 463 at 4,096 x 65,536, 203 against 225 at 8,192 x 16,384, 156 against
    #: 171 at 12,288 columns, 395 against 438 at 32,768, 411 against 522 at 2,048 x 131,072, 426 against 567 at 1,024 x
    #: 262,144. 205 against 237 at 16,384 x 8,208, 130 against 146 at 4,096 x 20,016. Where rows begin in the middle of
    #: 32 bytes it is 10 % either way, in fp32 from 4 % less to 2 more. Each group of programs must have so many rows:
    #: 63.0 us against 64.3 at 2,000 x 16,384, 40 against 38 at 1,000; 115 against 126 at 1,000 x 65,536, 50.3 against
    #: 49.5 at 300; but 32.3 against 30.8 at 600 x 20,480. Those that do not all begin on 16 bytes are in turns, by
    #: fewer warps, of which registers hold what 16 on an SM would put aside: 150 us against 166 held by programs that
    #: share rows at 4,096 x 20,001, 130 against 148 at 8,192 x 9,001, 228 against 331 at 4,096 x 33,001, 436 against
    #: 497 at 62,001, 342 against 563 at 2,000 x 100,001; and sooner: 34.8 against 37.3 at 1,000 x 12,001, 32.1 against
    #: 36.4 at 150 x 47,001. With more slices than twice `many_slices` the second of these, 631 against 791 at 1,024 x
    #: 262,146, 473 against 485 at 2,048 x 131,074, but 603 against 568 at 131,073. By 16 warps 268 against 304 at 4,096
    #: x 40,963, of which they have 48 groups and twelve have 32; elsewhere 3 to 16 % slower.
    centred_ring_rows: tuple[int, int] = (12, 4)
    centred_turns_rings: tuple[Tile, ...] = (Tile(1024, 1, 1, 12, 3), Tile(2048, 1, 2, 6, 3))

    #: Up to so many rows, programs for dx and programs for dW read the same rows in one launch, and there are no
    #: partials to sum: 3.3 us against 5.9 at 128 x 4,096, 2.1 against 5.5 at 1 x 8,192. From 1,024 rows on the
    #: second reading costs more than the second launch.
    few_rows_of_any_width: int = 256
    few_row: Tile = Tile(16384, 1, 8, block=2048)
    #: Limits of registers with which an SM has room for another of these. LayerNorm's: 7.0 us against 8.2 at 300 x
    #: 4,000, 7.8 against 8.7 at 400 x 4,096, level up to 200 rows, but 10.8 against 10.1 at 512 x 3,584; 6.2 against
    #: 7.1 at 200 x 6,144, but 9.1 against 8.8 at 300. With a residual: 5.4 against 6.7 at 200 x 4,096, and 5.7 with 64;
    #: in fp32 13.0 against 15.5 at 200 x 8,192. RMSNorm's with a residual: 6.9 against 8.0 at 300 x 5,120, 6.9 against
    #: 7.3 at 200 x 7,168. Elsewhere they are level to a quarter slower, 13.8 against 12.5 at 380 x 10,240.
    few_limits: tuple[FewLimit, ...] = (
        FewLimit(centred=True, residual=False, itemsize=2, first=3073, last=4096, registers=64),
        FewLimit(centred=True, residual=False, itemsize=2, first=5121, last=6144, registers=80, per_sm=2),
        FewLimit(centred=True, residual=True, itemsize=2, first=3073, last=4096, registers=80),
        FewLimit(centred=True, residual=True, itemsize=4, first=7169, last=8192, registers=128, per_sm=2),
        FewLimit(centred=False, residual=True, itemsize=2, first=4097, last=5120, registers=64, per_sm=3),
        FewLimit(centred=False, residual=True, itemsize=2, first=6145, last=7168, registers=80, per_sm=3),
    )
    #: More than `few_wide_rows` that are loaded in pieces of 2 bytes: 10.1 us against 12.1 at 90 x 12,779, 6.1 against
    #: 7.2 at 200 x 4,099, 3.3 against 5.3 at 200 x 301. LayerNorm's fewer are slower so, 3.5 against 3.0 at 20 x 4,099.
    few_odd_row: Tile = Tile(16384, 1, 16, block=1024)
    #: And RMSNorm's of these are few up to so many, with so many elements in all: 4.8 us against 6.0 at 339 x 697, with
    #: a residual 4.9 against 8.8; but 6.1 against 5.2 at 500 x 301. LayerNorm's are level or slower.
    few_odd_rows: int = 384
    few_odd_elements: int = 1 << 19
    #: Wider rows, where programs would share each: 7.6 us against 12.6 at 5 x 20,480, 5.9 against 11.4 at 5 x 12,160 in
    #: fp32. It is level at 100 rows, and 47 against 29 at 256 x 32,768.
    few_wide_rows: int = 64
    few_wide_row: Tile = Tile(32768, 1, 16, block=2048)
    #: Where eight programs can form a cluster and share a row, so much of it each, rows of so many columns of 16 bits
    #: and more are few up to so many: 2.6 us against 3.9 at 1 x 16,384, 13.2 against 18.0 at 128 x 32,768, 4.7 against
    #: 17.2 at 2 x 40,505 in fp32; 28 against 25 at 256 x 32,768. And up to so many elements, by the bytes in which rows
    #: are loaded, of RMSNorm's, LayerNorm's and those with a residual, beyond which programs that share rows read them
    #: once and are sooner done: 13.9 us against 14.7 at 96 x 40,960, 31.5 against 25.1 at 128 x 65,528, LayerNorm 19.9
    #: against 22.1 at 64 x 66,560, 46.5 against 30.3 at 128 x 65,528, with a residual 12.5 against 13.6 at 64 x 40,960,
    #: 40.5 against 29.3 at 128 x 65,528. In pieces of 4 bytes 16.4 against 17.4 at 64 x 54,282, 34.9 against 24.0 at
    #: 128 x 54,282; of 2 bytes 10.8 against 11.7 at 40 x 33,001, 12.1 against 11.0 at 48 x 33,001, 71.3 against 26.8 at
    #: 128 x 65,001. Of these LayerNorm's are few up to more if those for dW have so many columns (`few_columns`): 17.8
    #: against 22.1 at 48 x 54,283, but 30.3 against 24.2 at 64; with a residual 14.0 against 16.1 at 33 x 54,283.
    few_slice: Tile = Tile(131072, 1, 4, block=1024)
    #: Programs of eight warps for LayerNorm's wider rows, and for up to so many of so many columns, 2.7 us against 3.6
    #: at 1 x 40,504. And for rows in pieces of 2 bytes from so many columns to so many, beyond which they spill: 31.6
    #: against 39.2 at 32 x 118,029.
    few_wide_slice: Tile = Tile(262144, 1, 8, block=2048)
    few_lone: tuple[int, int] = (4, 40000)
    few_single_between: tuple[int, int] = (98305, 155648)
    few_shared_rows: tuple[tuple[int, int], ...] = ((16384, 128), (8192, 16))
    few_widest_from: int = 65537
    few_shared_elements: tuple[tuple[int, tuple[int, int, int]], ...] = (
        (2, (3 << 19, 1 << 21, 3 << 19)),
        (4, (7 << 19, 1 << 22, 3 << 20)),
        (16, (1 << 22, 17 << 18, 3 << 20)),
    )
    few_wide_odd_elements: tuple[int, int, int] = (1 << 21, 7 << 19, 1 << 21)
    #: From so many columns on, of any dtype, each of one wave of programs has the same columns of up to so many rows
    #: (kernels/few_split.py), by clusters: 8.8 us against 15.5 at 16 x 118,029, LayerNorm 10.4 against 17.9; 3.2
    #: against 4.5 at 1 x 82,703, 5.8 against 10.1 at 4 x 262,144, 10.2 against 14.5 at 32 x 98,304, LayerNorm 9.9
    #: against 40 at 4 x 393,216; by programs that share rows 7.5 against 692 at 1 x 1,500,001, LayerNorm 17.7 against
    #: 57.9 at 16 x 200,001. Narrower ones are level at 49,001 columns, and slower below and where rows begin on 16
    #: bytes: 4.4 against 4.1 at 16 x 25,001, 6.2 against 5.3 at 16 x 65,536, 5.1 against 4.3 at 8 x 40,001 in fp32. And
    #: 12.8 against 13.9 at 24 x 131,072, LayerNorm 18.0 against 15.3; 23.8 against 21.6 at 24 x 118,029. Columns of a
    #: block are counted in what a thread loads at once: with half as many, so that more warps have other rows, 9.5
    #: against 8.8 at 16 x 118,029, with twice as many 10.7; 10.2 against 11.9 at 32 x 66,001.
    #: One row in half the warps, unless it is very wide: 3.2 us against 3.8 at 82,703 columns, 3.6 against 4.5 at
    #: 200,001, LayerNorm 4.1 against 4.4; but 5.9 against 5.8 at 1,000,000, LayerNorm 7.7 against 6.1. Two rows not as
    #: four: 3.5 against 4.0 at 2 x 100,001, LayerNorm 6.2 against 6.9 at 262,144 columns, 9.4 against 13.5 at 800,000.
    few_split_from: int = 65537
    few_split_tiles: tuple[Tile, ...] = (
        Tile(3 << 18, 1, 4, block=128),
        Tile(1 << 21, 1, 8, block=256),
        Tile(1 << 20, 2, 8, block=128),
        Tile(1 << 20, 4, 8, block=128),
        Tile(1 << 19, 8, 8, block=128),
        Tile(1 << 18, 16, 8, block=128),
        Tile(1 << 17, 32, 8, block=64),
    )
    #: With a residual those in pieces of 2 bytes spill earlier: 16.4 us against 26.0 at 16 x 150,001 and 32.3 against
    #: 33.8 at 200,001 columns, but 51.6 against 39.4 at 262,143, and 22.0 against 20.6 at 32 x 82,703.
    few_split_odd_summed_tiles: tuple[Tile, ...] = (
        *few_split_tiles[:5],
        Tile(13 << 14, 16, 8, block=128),
        Tile(5 << 14, 32, 8, block=64),
    )
    #: And up to so many, if a row has so many columns for each of them, and all together have no more elements: 5.7 us
    #: against 8.1 at 281 x 4,096, LayerNorm 15.4 against 21.2 at 281 x 12,544, 10.1 against 11.7 at 500 x 4,096; level
    #: at 500 x 8,192, and 27 against 20 at 500 x 12,544.
    few_rows: int = 512
    few_columns_a_row: int = 5
    few_elements: int = 1 << 22
    #: Those that could be taken in turns up to so many rows x rows x columns: 11.1 us against 9.4 at 500 x 3,001, 23.9
    #: against 17.0 at 300 x 12,001, with a residual 25.3 against 20.6, LayerNorm 27.3 against 22.7; but 7.7 against 8.9
    #: at 400 x 3,001, 10.4 against 13.3 at 300 x 6,001, 11.1 against 14.1 at 260 x 8,193.
    few_in_turns: int = 600 << 20
    #: Columns of a program for dW, and rows at a time, for up to so many rows: 4.6 us against 12.1 at 1 x 101,632, 5.3
    #: against 7.9 at 16 x 65,536, LayerNorm 8.5 against 13.9 at 24 x 65,536, 2.1 against 2.5 at 4 x 4,096. The first
    #: also where a row has so many columns for each: 11.3 us against 14.9 at 40 x 66,560, LayerNorm 12.3 against 18.9,
    #: 10.1 against 12.6 at 40 x 40,961; 13.0 against 12.5 at 56 x 57,344.
    few_columns: tuple[tuple[int, Tile], ...] = ((24, Tile(256, 1, 8)), (512, Tile(32, 16, 8)))
    few_columns_each: int = 1024

    #: Column sums for dW in the stream schedule.
    stream_affine: Tile = Tile(256, 8, 4, 4, 1)

    #: Of the programs that could walk, this share at least must, so that their partials are a power of two: with 128 on
    #: 132 SMs 30.8 us against 31.3 at 4,096 x 4,096, with 1,024 of 1,056 17.8 against 18.3 at 32,768 x 256, level at
    #: 32,768 x 4,096.
    walking_share: float = 0.95
    #: Up to so many columns, and LayerNorm's of any width, dense rows are found by constants: 5.0 us against 5.3 at
    #: 8,259 x 64, LayerNorm of 4,096 x 4,096 32.4 against 32.9. Wider ones take more registers so: RMSNorm of 8,192 x
    #: 8,192 103.0 against 102.3.
    dense_columns: int = 6144
    #: Partials of dW and dB are no more than so many bytes, or such a part of x if that is more.
    partials_bytes: int = 8 << 20
    partials_of_x: int = 50
    #: The sum of partials: tiles of so many elements, all of which are loaded at once, and as narrow as gives about
    #: this many programs, because few columns must still fill the GPU (8 columns a tile: 20.0 us against 23.4 for the
    #: whole backward of 32,768 x 256).
    partials_elements: int = 8192
    partials_programs: int = 128
    partials_blocks: tuple[int, int] = (8, 32)
    #: With eight warps, where dW and dB are summed at once, 20.7 us against 20.5 at 2,048 x 4,096.
    partials_warps: int = 4
