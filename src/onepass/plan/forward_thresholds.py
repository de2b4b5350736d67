"""Where a forward's schedule ends and the next begins, and which tile serves which width."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.plan.tiles import Between, Limit, Tile


@dataclass(frozen=True)
class ForwardThresholds:
    #: From this many rows on, a tile of several rows is the full one of the tables below: one short row is too little
    #: work for a program (Liger's PR #1238 found 40 to 80 % there). With fewer rows it is the smallest tile that gives
    #: each thread one vector, which spreads a small problem over more SMs; but two, four, up to 16 of these together,
    #: as long as there would be more programs than so many, and one has no more elements than so many: LayerNorm of 849
    #: x 128 1.98 us in 54 programs against 2.18 in 14, of 3,000 x 256 2.6 in 94 against 2.75 in 188.
    #: The shortest, of no more than so many bytes, have these from more rows on: 1.84 us against 2.03 at 12,000 x 24,
    #: LayerNorm 2.37 against 2.46 at 13,739 x 40; with a residual level at 8,000 x 48, but 2.6 against 2.5 at 8,000 x
    #: 96. And those that begin on 16 bytes and are held in so few: 1.95 against 2.05 at 4,747 x 64, 2.3 against 2.4 at
    #: 5,000 x 128, LayerNorm 2.7 against 2.9 at 7,000 x 112, with a residual 2.3 against 2.4 at 5,000 x 64; level at
    #: 10,000 rows, but 2.5 against 2.4 at 5,000 x 64 in fp32.
    block_row_min_rows: int = 4096
    shorter_min_rows: int = 8192
    shorter_bytes: int = 256
    shortest_min_rows: int = 16384
    shortest_bytes: int = 96
    small_programs: int = 64
    small_elements: int = 8192
    small_warps: int = 16
    #: Rows that fill a warp each, or two, are put together too: RMSNorm's of so many bytes, however many there are, and
    #: of half as many again from so many rows on; LayerNorm's of 16 bits and so many bytes from so many rows on, and in
    #: fp32 of half as many again from fewer. With a residual 3.7 us against 4.2 at 3,153 x 264, 3.8 against 4.0 at 312
    #: columns; RMSNorm 3.2 against 3.8 at 3,153 x 432, 3.4 against 3.5 at 2,000 x 768, but 2.8 against 2.5 at 1,000 x
    #: 640; in fp32 2.8 against 3.5 at 3,153 x 136, and by two warps a row 3.9 against 4.4 at 4,000 x 264. LayerNorm 3.9
    #: against 4.6 at 4,000 x 512, but 2.3 against 2.2 at 500; in fp32 3.8 against 4.0 at 2,978 x 312, 3.0 against 3.7
    #: at 168 columns, 2.6 against 2.8 at 1,300 x 312, level at 1,000.
    short_bytes: int = 1024
    short_rows: int = 2000
    short_fp32_rows: int = 1300

    #: Rows that are summed in chains (chains.py) have a warp for each as long as an SM has no more than so many:
    #: LayerNorm of 800 x 1,536 3.1 us against 3.3, of 528 x 3,072 3.7 against 3.8, but of 1,000 5.4 against 5.1, with a
    #: residual 264 x 4,096 3.9 against 4.0, and 400 4.8 against 4.7. From `shared_warps` on where clusters take them:
    #: RMSNorm of 1 x 12,288 2.0 against 2.2, but of 40 x 16,384 3.1 against 3.0.
    spread_warps: int = 16
    #: Of nothing but x, of 16 bits, so many blocks have two chains though they are an odd number, and up to so many
    #: rows for each SM a warp for each: LayerNorm of 51 x 1,664 2.05 us against 2.21, of 1 x 1,080 1.54 against 1.70,
    #: of 132 x 2,200 2.37 against 2.53, RMSNorm of 1 x 13,000 2.14 against 2.37. In a warp two chains are level to 2 %
    #: slower, but 11.8 against 10.8 at 8,192 x 1,080, 4.4 against 4.6 at 2,000. In fp32 few are level to 3 % slower so,
    #: with a residual of nine blocks 3 % slower to 4 faster; of five blocks LayerNorm of many is 3 to 12 % slower.
    uneven_blocks: int = 7
    uneven_rows: int = 2

    #: RMSNorm forward: a program for each tile, which the GPU hands out better than they walk. Blocks are as narrow as
    #: keeps every thread loading 16 bytes, so that little of the last one is beyond the row.
    forward_tiles: tuple[Tile, ...] = (
        Tile(32, 64, 4, block=32),
        Tile(96, 16, 2, block=32),
        Tile(192, 16, 4, block=64),
        Tile(384, 16, 4, block=128),
        Tile(504, 8, 4, block=256),
        Tile(512, 4, 4, block=128),
        Tile(1024, 8, 4, block=256),
        Tile(1536, 2, 2, block=256, chains=2),
        Tile(3072, 1, 4, block=1024),
        Tile(4096, 1, 8, block=2048),
        Tile(5120, 1, 4, block=1024),
        Tile(10240, 1, 8, block=2048),
        Tile(16384, 1, 8, block=2048, chains=2),
    )
    #: Of nothing but x, of 16 bits, from so many columns on with fewer warps, so that more rows are on an SM at once:
    #: 5.0 us against 5.5 at 2,093 x 1,600, 8.2 against 8.6 at 4,096 rows, 50.2 against 52.4 at 32,768; 5.2 against 5.6
    #: at 2,093 x 1,792, but 3.8 against 3.7 at 1,000. Up to 3,072 columns it is 6 to 9 % at 2,093 rows too, and level
    #: for many, but 5 % slower at 1,000 x 2,048 and 13.9 us against 13.0 at 4,096 x 2,880. From 5,121 columns on 6.8
    #: against 8.0 at 1,056 x 5,376, 7.4 against 8.5 at 6,144 columns, 57.8 against 61.3 at 11,160 x 5,376; level at 64
    #: and 300 rows. Of 2,049 to 2,304 columns 5.7 against 6.3 at 2,064 x 2,112, 10.2 against 10.5 at 4,096, level at 64
    #: and 300, but 4.0 against 3.9 at 1,000. The widest by two chains: 1.95 us against 2.05 at 16 x 5,888, level from
    #: 132 rows on.
    #: Of 3,073 to 3,840 columns 33.0 against 35.9 at 10,894 x 3,080, 8.2 against 8.9 at 2,000 x 3,376, 9.0 against 9.4
    #: at 2,000 x 3,840; but 2.82 against 2.78 at 300 x 3,136.
    plain_between: Between = (
        (1537, Tile(1792, 1, 2, block=256)),
        (2049, Tile(2304, 1, 2, block=256)),
        (3073, Tile(3840, 1, 4, block=1024)),
        (5121, Tile(6144, 1, 4, block=512, chains=2)),
    )
    #: In fp32, by twice the columns, smaller programs in narrower blocks: 7.5 us against 8.1 at 20,000 x 160, 19.9
    #: against 21.2 at 60,000, 6.0 against 6.9 at 20,000 x 104, 3.1 against 3.4 at 4,000 x 192; level at 128 columns and
    #: for many. The shortest by one warp: 2.7 us against 2.8 at 16,231 x 32, 5.1 against 5.3 at 60,000. Wide ones by
    #: half the warps, so that a second row is on an SM: 5.2 us against 6.6 at 133 x 10,952, 6.8 against 8.4 at 200 x
    #: 12,288, level from 264 rows on, and no better at 10,240 columns. The widest with the weight late, for the same
    #: reason: 23.6 us against 26 at 775 x 14,208, 6.1 against 7.2 at 133 x 12,544, 79 against 83 at 2,500 x 16,384; but
    #: 8.0 against 7.7 at 264 x 12,288. In between, four rows, of which no load is behind a wait for others: 5.8 against
    #: 6.8 at 4,469 x 512, 5.6 against 6.9 at 9,000 x 232, 5.95 against 7.2 at 4,469 x 520, 9.1 against 10.2 at 5,500 x
    #: 768, 0 to 2 % from 50,000 rows on; but up to 8 % slower from 257 to 511 columns.
    plain_fp32_between: Between = (
        (49, Tile(64, 16, 1, block=32)),
        (193, Tile(384, 8, 2, block=64)),
        (385, Tile(504, 4, 2, block=256)),
        (1024, Tile(1536, 4, 4, block=256)),
        (20481, Tile(24576, 1, 8, block=1024)),
        (24577, Tile(32768, 1, 16, block=2048, late=1, registers=64)),
    )
    #: With a residual twice the warps of the narrow ones: 5.1 us against 5.9 at 7,392 x 128, 8.4 against 10.0 at 12,000
    #: x 160, level at 500 and 200,000 rows, but 5.0 against 4.8 at 7,392 x 104. Of 257 to 512 columns two rows: 6.1 us
    #: against 6.7 at 4,469 x 288, 9.9 against 10.8 at 512 columns, 0 to 1 % from 50,000 rows on, but 16.0 against 15.5
    #: at 7,000 x 512. Wide ones: 10.9 against 12.8 at 200 x
    #: 10,952, 19.0 against 21.3 at 351, level for many, but 2.6 against 2.4 at 1 x 12,288, and 54 against 50 at 1,200 x
    #: 10,240. The widest: 130 us against 154 at 2,500 x 13,312, 10.3 against 10.9 at 133 x 12,544, 160 against 162 at
    #: 2,500 x 16,384; but 31 against 30 at 400.
    summed_fp32_between: Between = (
        (225, Tile(384, 8, 4, block=64)),
        (513, Tile(1024, 2, 2, block=256)),
        (20481, Tile(24576, 1, 8, block=1024)),
        (24577, Tile(32768, 1, 16, block=2048, late=1)),
    )
    #: Short ones of nothing but x, of 16 bits, that begin on 8 bytes at least, RMSNorm's and LayerNorm's, in narrower
    #: blocks, which reach less far beyond the row: 33.6 us against 42.4 at 1,625,000 x 20, LayerNorm 37.0 against 54.8;
    #: 34.8 against 38.1 at 902,777 x 36, LayerNorm 36.8 against 48.6; level at 500 and 6,000 rows, but LayerNorm of
    #: 500 x 36 1.95 against 1.77. LayerNorm of 65 to 80 columns 33.8 against 37.4 at 451,388 x 72, 33.0 against 35.0 at
    #: 406,250 x 80, 4.8 against 5.4 at 40,000 x 72, few within 3 %; RMSNorm is level or slower.
    short_between: Between = ((17, Tile(24, 64, 4, block=8)), (33, Tile(48, 32, 4, block=16)))
    short_centred_between: Between = (
        (17, Tile(24, 64, 4, block=8)),
        (33, Tile(48, 16, 1, block=16)),
        (65, Tile(80, 16, 2, block=16)),
    )
    #: And those that begin on 8 bytes: 10 to 17 % at 8 to 1,000 x 2,502, level for many; 4.8 % at 8 x 4,290, 5.8 at
    #: 1,000, 5 at 1,000 x 5,002; but 1 to 2 % slower at 4,000, and no better at 6,002 columns and more.
    summed_fp32_eights_between: Between = ((4097, Tile(5120, 1, 4, block=512)), (8193, Tile(10240, 1, 8, block=512)))
    #: With a residual of 16 bits, by twice the columns. A warp a row: 6.5 us against 7.2 at 2,500 x 960, 8.2 against
    #: 9.3 at 4,000 x 896, 18.2 against 19.0 at 8,738 x 960; few are level, but 5.0 against 4.7 at 1,600 x 1,024. And
    #: narrower blocks: 8.9 against 9.7 at 1,000 x 4,096, 17.7 against 18.1 at 2,048 rows, 18.7 against 19.9 at 2,048 x
    #: 4,352; level at 128 rows and for many, but 6.2 against 6.0 at 500 x 4,352.
    summed_between: Between = (
        (1537, Tile(2048, 1, 1, block=256, chains=2)),
        (7681, Tile(9216, 1, 4, block=512, chains=2)),
        (10241, Tile(16384, 1, 8, block=2048)),
    )
    #: With a weight that is wider than x, fewer warps to read it: 63.8 us against 68.6 at 16,384 x 4,096, 9.3 against
    #: 10.2 at 2,000 rows. It is level at 2,048 and at 8,192 columns.
    wider_weight_between: Between = ((3073, Tile(4096, 1, 4, block=1024)),)
    #: What is held in fp32, a sum with the residual for instance, counts as twice the columns. Up to these it is a tile
    #: still: level with a walk for many rows, and 5.1 us against 6.0 at 13 x 11,712.
    wide_forward_tile: Tile = Tile(32768, 1, 16, block=2048)
    #: With an FP8 output there is more to do for each value, and less to write: fewer warps, which wait less for each
    #: other. With a given scale 94 us against 113 with eight at 32,768 x 4,096, and 49 at 8,192 x 8,192.
    quantized_tiles: tuple[Tile, ...] = (
        Tile(4096, 1, 4),
        Tile(8192, 1, 4, block=4096),
        Tile(16384, 1, 8, block=1024),
    )
    #: Where nothing but amax is found, in the first of the tensor's two launches: 158 us against 162 for both at
    #: 32,768 x 4,096, and 83 against 87 at 8,192 x 8,192.
    amax_tiles: tuple[Tile, ...] = (
        Tile(4096, 1, 2),
        Tile(6144, 1, 4, block=4096),
        Tile(8192, 1, 4),
        Tile(16384, 1, 8, block=1024),
    )
    #: The same where amax is found on the way: 101 us against 104 with four warps, and 52 against 54.
    merged_tiles: tuple[Tile, ...] = (
        Tile(4096, 1, 2, block=2048),
        Tile(8192, 1, 2, block=2048),
        Tile(16384, 1, 8, block=1024),
    )
    #: Where a row has a scale of its own: 93 us against 95 with four warps, and 52 with four (50 with two, but then 83
    #: against 77 both ways).
    row_scaled_tiles: tuple[Tile, ...] = (Tile(4096, 1, 2), Tile(8192, 1, 4), Tile(16384, 1, 8, block=1024))
    #: Where columns share scales, wide blocks, which leave more of each group in a thread: 95 us against 101 with four
    #: warps, and 52 against 54 with blocks of 4,096.
    grouped_tiles: tuple[Tile, ...] = (Tile(4096, 1, 2), Tile(8192, 1, 4), Tile(16384, 1, 8, block=4096))
    quantized_from: int = 3073
    #: From so many columns on, LayerNorm's from more, and with more elements than so many for each SM, weight and bias
    #: are asked for before the row: 9.8 us against 10.6 at 2,000 x 4,096, LayerNorm 10.3 against 11.3, a scale a row
    #: 8.9 against 11.0; at 16,384 rows 63.9 against 64.5 and 64.4 against 65.4, a scale a row 51.3 against 53.6 at
    #: 8,192 x 8,192. Fewer are slower so, 256 x 231 2.3 us against 1.8, and short rows by up to 3 %. LayerNorm's that
    #: are loaded element by element are 3 to 9 % slower, however many; with a residual and a given scale it is 1 %.
    #: Of nothing but x in fp32 half as many are enough, of fewer columns and element by element too, and they are not
    #: few either (below): 6.3 against 6.6 at 1,031 x 2,560, LayerNorm 5.7 against 7.3 at 687 x 3,072, 5.9 against 7.4
    #: at 1,375 x 1,536, 6.2 against 7.7 at 1,935 x 1,091; level from 9,000 elements on, or up to 3 % slower.
    affine_first_columns: tuple[int, int] = (1024, 1536)
    affine_first_fp32_columns: tuple[int, int] = (512, 192)
    affine_first_elements: int = 20480
    #: Where they are asked for late from so many programs for each SM on, fewer ask for them first too: LayerNorm of
    #: 1,000 x 8,704 12.1 us against 12.4, 2,000 x 3,080 9.0 against 9.9 late. Wider ones, which are late soon, do not:
    #: 12.8 against 13.6 at 200 x 32,768, RMSNorm 6.4 against 6.8 at 100 x 33,896.
    affine_first_late: int = 16
    #: Up to so many elements for each SM, alone and with a residual, what counts is how soon a row is done, and not how
    #: many an SM has room for: dense rows by constants, weight and bias in the rows' layout, no division by a power of
    #: two. LayerNorm of 300 x 256 1.73 us against 2.21, 440 x 128 1.63 against 1.89, 1,300 x 2,048 4.5 against 4.8,
    #: RMSNorm of 300 x 512 1.73 against 1.92, 1 x 4,096 1.6 against 1.8, with a residual 650 x 512 2.4 against 2.6 and
    #: 1,300 x 2,048 6.7 against 7.6. More rows would wait for registers: LayerNorm of 3,000 x 1,024 5.1 against 4.8,
    #: RMSNorm of 8,192 x 16,384 167 against 126. So do clusters with a residual, 9.3 against 7.8 at 64 x 40,960, and
    #: wider rows than these that are loaded element by element, LayerNorm of 8 x 20,001 3.9 against 3.4.
    prompt_elements: tuple[int, int] = (20480, 40960)
    prompt_singles: int = 3072
    #: RMSNorm's sums with a residual, so many elements a thread, take more registers so: of 16 warps one is on an SM
    #: for two, in fp32 of eight two for three. More rows than that are planned as many are: 8.45 us against 10.2 at 200
    #: x 16,384, 8.7 against 11.0 at 264 x 14,400, in fp32 12.1 against 14.2 at 330 x 8,192. LayerNorm's are 8 to 12 %
    #: slower as many, 133 x 11,264 8.1 against 7.2, 264 x 10,240 in fp32 14.4 against 13.3.
    prompt_sums: int = 32
    #: Sums with a residual are stored before they are normalized, so that their way to memory is behind them when y
    #: takes it, where rows have more bytes than so many, alone and in a cluster, or do not begin on 16 bytes, and no
    #: more elements for each SM than so many: 1.82 us against 1.92 at 16 x 4,096, 4.2 against 4.6 at 133 x 8,192, 5.0
    #: against 5.4 at 400 x 4,352, 5.5 against 6.1 at 1,000 x 2,002, LayerNorm 6.2 against 6.7 at 600 x 4,096; in fp32
    #: 4.8 against 5.4 at 200 x 4,096, 3.65 against 4.3 at 500 x 1,001. Level at 660 x 4,096, and more rows are 1 to 10
    #: % slower so, with a y behind every sum that others wait for; narrower ones of 16 bits level to 5 % slower,
    #: clusters of fewer bytes 1 to 5 %. With an FP8 output fewer: 2.2 against 2.4 at 16 x 4,096, 3.2 against 3.4 at 64
    #: x 8,192, but in groups of 128 5.3 against 5.2 at 400 x 4,096, and with a given scale 8.5 against 7.5 at 400 x
    #: 8,192.
    sum_first_bytes: tuple[int, int] = (4096, 20480)
    sum_first_elements: tuple[int, int] = (20480, 8192)
    #: Of 16 bits, from so many columns on, however many rows there are: 35.4 us against 38.3 at 1,000 x 17,408, 131
    #: against 139 at 4,000, 501 against 516 at 4,000 x 65,536; but in fp32 56 against 54 at 400 x 32,768. And with an
    #: FP8 scale for each row, which is one wait more: 89 against 121 at 4,000 x 13,312, where it takes fewer registers
    #: so, 4.7 against 5.1 at 66 x 16,384, 11.5 against 12.4 at 400 x 12,288; 55.3 against 56.1 at 4,000 x 8,192.
    sum_first_from: tuple[int, int] = (16385, 10241)
    #: Limits of registers with which two programs are on an SM for one, three for two, or four for three. Without an
    #: FP8 output LayerNorm's. In fp32, where weight and bias are late: 8.3 us against 10.0 at 400 x 7,168, 127 against
    #: 142 at 4,000 x 16,384, 12.6 against 16.9 at 264 x 18,432, 177 against 191 at 4,000 x 20,480; not late, 23.5
    #: against 12.7 at 264 x 16,384, but 7.3 against 9.1 at 264 x 10,240. With a residual, late: 17.1 against 18.9 at
    #: 400 x 13,312, 119 against 123 at 4,000, but 141 against 137 at 4,000 x 16,384; in fp32 21.4 against 25.7 at 400 x
    #: 11,264, 193 against 204 at 4,000 x 12,288. Stored first: 6.2 against 7.2 at 133 x 11,264, 7.7 against 8.7 at 200
    #: x 12,288; stored with y they spill, 11.7 against 9.6 at 264 x 11,264. With an FP8 output and a residual. A scale
    #: for each row: 8.8 us against 10.1 at 200 x 16,384, 112 against 120 at 4,000, LayerNorm 42.5 against 53.3 at 4,000
    #: x 5,120; in groups of 128 8.35 against 9.8 at 133 x 15,360, LayerNorm 42.9 against 53.9 at 4,000 x 5,120, and
    #: without a residual 53 against 62 at 4,000 x 11,264; a delayed scale 6.6 against 8.3 at 133 x 13,312, 110 against
    #: 129 at 4,000 x 16,384. As few as run at once without it are up to 5 % slower so. Not in: groups of 128 without a
    #: residual, RMSNorm, 50 against 47 at 4,000 x 13,312.
    # fmt: off
    limits: tuple[Limit, ...] = (
        Limit(centred=True, residual=False, itemsize=4, first=6145, last=20480, registers=64, late=True),
        Limit(centred=True, residual=False, itemsize=4, first=9217, last=10240, registers=64, per_sm=1, late=False),
        Limit(centred=True, residual=True, itemsize=4, first=10241, last=12288, registers=64, late=True),
        Limit(centred=True, residual=True, itemsize=2, first=12289, last=16384, registers=64, late=True),
        Limit(centred=True, residual=True, itemsize=2, first=10241, last=12288,
              registers=64, per_sm=1, late=False, sum_first=True),
        Limit(centred=False, residual=True, itemsize=2, first=14337, last=16384,
              registers=64, per_sm=1, quantized="token"),
        Limit(centred=True, residual=True, itemsize=2, first=4097, last=6144,
              registers=80, per_sm=2, quantized="token"),
        Limit(centred=False, residual=True, itemsize=2, first=14337, last=16384,
              registers=64, per_sm=1, quantized="block"),
        Limit(centred=True, residual=False, itemsize=2, first=10241, last=12288,
              registers=80, per_sm=2, quantized="block"),
        Limit(centred=True, residual=True, itemsize=2, first=4097, last=6144,
              registers=80, per_sm=2, quantized="block"),
        Limit(centred=False, residual=True, itemsize=2, first=12289, last=16384,
              registers=64, per_sm=1, quantized="delayed"),
    )
    # fmt: on
    #: Up to so many of RMSNorm's rows, of no more than so many bytes, ask for the weight first: 1.57 us against 1.9 at
    #: 1 x 3,072, 1.8 against 1.9 at 1 x 5,120, 1.66 against 2.0 at 1 x 2,289 in fp32, level at 4 x 5,120. More rows are
    #: up to 8 % slower so, wider ones 6 %: of several the first that comes asks for all. LayerNorm's are 2 to 15 %
    #: slower, with a residual from 18 % faster to 54 slower.
    lone_rows: int = 4
    lone_bytes: int = 13312
    #: LayerNorm forward: its second sum waits for its first, so fewer warps, which then wait for fewer others. Where a
    #: thread has much to hold, weight and bias are asked for late, so that more rows are there at once: 97 us against
    #: 114 at 8,192 x 12,288, 129 against 136 at 16,384 columns. Few rows are all there anyway, and would wait longer:
    #: 7.3 us against 5.9 at 133 x 16,384, 12.4 against 10.3 at 800 x 8,448. RMSNorm, without a bias, does not gain.
    #: From 129 columns on narrow blocks reach less far beyond the row: 62 us against 85 at 441,176 x 136, 58 against 62
    #: at 277,777 x 216, 3.2 against 4.1 at 8,000 x 136; but 2.3 against 1.95 at 300 x 216. Of the widest, blocks do not
    #: get narrower: 7.4 against 8.2 at 371 x 12,416, 7.1 against 8.5 at 371 x 6,208 in fp32, 0 to 2 % for many rows. In
    #: blocks of 64 rows of 128 columns have twice the threads: 1.86 us against 2.02 at 440 of them, 2.2 against 2.5 at
    #: 3,000, level for many; but 60.8 against 58.2 at 576,923 x 104.
    centred_forward_tiles: tuple[Tile, ...] = (
        Tile(32, 64, 4, block=32),
        Tile(124, 16, 2, block=32),
        Tile(128, 16, 4, block=64),
        Tile(192, 16, 4, block=32),
        Tile(320, 16, 4, block=64),
        Tile(384, 8, 4, block=128),
        Tile(504, 16, 8, block=128),
        Tile(768, 2, 1, block=256),
        Tile(1024, 1, 1, block=256, chains=2),
        Tile(2048, 1, 1, block=256, chains=2),
        Tile(3072, 1, 2, block=512, chains=2),
        Tile(8192, 1, 4, block=1024),
        Tile(9216, 1, 8, block=2048, late=16),
        Tile(14336, 1, 8, block=2048, late=2, narrows=False),
        Tile(16384, 1, 8, block=2048, late=2, narrows=False, chains=2),
    )
    #: In fp32, by twice the columns, in blocks half as wide: 5.0 us against 5.7 at 6,226 x 264, 5.2 against 6.0 at 320
    #: columns, 32.2 against 33.7 at 61,553 x 264, level at 6,226 x 384. With half the warps: 5.9 us against 7.5 at 200
    #: x 8,832, 19.7 against 21.4 at 1,000, 51.5 against 52.8 at 2,997; but 30.5 against 23.6 at 1,000 x 9,984. And not
    #: late: 5.1 against 5.6 at 273 x 4,864, 8.2 against 10.5 at 600, but 6.6 against 6.5 at 400, and level for many;
    #: 9.3 against 10.6 at 400 x 8,192, but 120 against 117 at 8,000 x 7,688.
    centred_fp32_between: Between = (
        (513, Tile(768, 4, 2, block=128)),
        (9217, Tile(10240, 1, 8, block=1024)),
        (15873, Tile(16384, 1, 8, block=1024)),
        (16386, Tile(18432, 1, 8, block=1024)),
    )
    #: Of nothing but x, of 16 bits, from so many columns on up to a tile's: late where rows are very many, and first
    #: where they are fewer. 62.6 us against 67.1 at 18,000 x 3,584, 56.1 against 59.3 at 3,080 columns, 58.0 against
    #: 60.7 at 11,160 x 5,376, 58.8 against 61.7 at 9,014 x 6,656; level at 6,144, and 60.5 against 59.1 at 7,324 x
    #: 8,192. In fp32 they are 2 % slower. The widest as soon as an SM has two rows, which would else come one behind
    #: the other: 5.9 us against 7.5 at 133 x 16,384, 6.7 against 8.2 at 133 x 19,136, 12.0 against 14.3 at 264 x
    #: 32,768; but 6.0 against 5.8 at 133 x 15,000, and in fp32 6.0 against 5.0 at 133 x 8,192.
    late_centred_between: Between = (
        (3073, Tile(3584, 1, 4, block=512, late=64)),
        (5121, Tile(7680, 1, 4, block=1024, late=32)),
        (16384, Tile(16384, 1, 8, block=2048, late=1, narrows=False)),
        (16385, Tile(20480, 1, 16, block=4096, late=1, ahead=0)),
        (20481, Tile(32768, 1, 16, block=4096, late=1, registers=64, narrows=False)),
    )
    #: Wider ones: 160 us against 174 walked at 8,192 x 20,480, 130 against 142 at 4,096 x 32,768, 173 against 192 at
    #: 40,960 columns, 287 against 304 at 65,536; with a residual 275 against 318 at 8,192 x 16,384; in pieces of 4
    #: bytes 89 against 186 at 4,096 x 20,002. Weight and bias of a block are asked for before the one in front of it is
    #: stored, where registers allow: 130 us against 137 at 4,096 x 32,768, 287 against 308 at 65,536 columns, 15.0
    #: against 18.1 at 300 x 32,768. Of a sum with a residual, held in fp32, it is 153 against 139 at 4,096 x 16,384.
    #: Narrower blocks are slower but for the first: 12.7 us against 14.7 at 300 x 24,832, 61.3 against 63.0 at 2,416;
    #: 23.0 against 26.1 at 300 x 49,408, 69.6 against 74.4 at 1,214; 11.1 against 9.0 at 300 x 16,640.
    wide_centred_tiles: tuple[Tile, ...] = (
        Tile(20480, 1, 16, block=4096, late=2, ahead=0),
        Tile(32768, 1, 16, block=4096, late=2, registers=64, narrows=False),
        Tile(40960, 1, 16, block=4096, late=0, registers=64, narrows=False),
        Tile(65536, 1, 32, block=8192, late=0, narrows=False),
    )
    #: Of nothing but x, of 16 bits, from so many columns on, both moments are found in one walk while the row comes:
    #: 278 us against 288 at 4,096 x 65,536, 208 against 215 at 49,152 columns, 172 against 175 at 40,960, 17.4 against
    #: 18.2 at 133 x 65,536. It is level from 1,536 to 32,768 columns, but 43 against 41 at 8,192 x 5,120. Rows that
    #: begin on 8 bytes would spill: 149 us against 71 at 1,714 x 35,004, 145 against 75 at 999 x 60,004.
    at_once_from: int = 32769
    #: RMSNorm's of nothing but x, of 16 bits, instead of walked: 15.8 us against 17.4 at 324 x 33,896, 69 against 73 at
    #: 2,048 rows, 98.6 against 101.6 at 2,048 x 49,152, 65.8 against 68.6 at 4,096 x 16,640, 6.3 against 6.9 at 133 x
    #: 27,008; but 9.6 against 9.3 at 400 x 16,640, of which a walk has three rows on an SM. In blocks of 2,048, which
    #: reach less far beyond 16,640 columns, 66.6 and 11.0.
    plain_tiles: tuple[Tile, ...] = (
        Tile(20480, 1, 16, block=4096, late=1),
        Tile(49152, 1, 16, block=4096, late=1, registers=64),
    )
    #: And so many columns and more, of fp32 too: 501 us against 517 at 8,192 x 65,536, 225 against 237 at 4,096 x
    #: 57,344, 14.7 against 16.9 at 133 x 65,536; but 11.8 against 10.0 at 133 x 49,152. And in pieces of 4 and 8 bytes:
    #: 112 us against 127 at 1,499 x 60,002, 95 against 108 at 60,004 columns, 24.8 against 30.9 at 300; but of fewer
    #: columns, in the tiles above, 3.0 against 2.6 at 1 x 44,004, and 96 against 98 at 2,045.
    wide_plain_from: int = 49153
    wide_plain_tile: Tile = Tile(65536, 1, 32, block=8192, late=0)

    #: Wider rows are walked by one program of so many warps, as long as the rows in flight, one a program, fit the L2
    #: with what is written: 252 us against 291 shared at 8,192 x 32,768, 520 against 540 at 8,192 x 65,536.
    streams: tuple[Tile, ...] = (Tile(20480, 1, 16, block=4096), Tile(73728, 1, 32, block=8192))
    #: LayerNorm's with an FP8 output, or with a residual in single elements: its two sums in a row cost less with fewer
    #: warps, 42 us against 66 at 1,638 x 20,480.
    centred_streams: tuple[Tile, ...] = (Tile(32768, 1, 16, block=4096), Tile(65536, 1, 32, block=8192))
    #: Up to so many rows for each SM, what would be walked is held, if a thread's registers take its part of a row, of
    #: weight and of bias beside so many others, LayerNorm's more: at 125 x 48,192 it took 29 us, with 320 bytes of each
    #: thread in memory. LayerNorm of 128 x 16,384: 5.2 us against 7.6, RMSNorm of 3 x 20,480: 2.9 against 4.3.
    #: Where registers spilled it was slower: 10.5 against 7.8 at 16 x 73,728.
    held_per_sm: int = 1
    registers_beside: tuple[int, int] = (16, 32)
    #: Sums with a residual of 16 bits, which begin on 16 bytes, are held again, from so many columns to so many, where
    #: rows are more than so many for each two SMs: 186 us against 220 walked at 4,000 x 24,576, 141 against 149 at
    #: 18,000 columns, 23.3 against 27.3 at 400 x 24,576, but 12.2 against 11.4 at 180 x 22,528, and 139 against 129 at
    #: 4,000 x 16,392. Wider ones, which clusters had: 125 against 142 at 2,500 x 26,000, 156 against 166 at 32,768
    #: columns, 18.6 against 18.8 at 264 x 28,672, but 21.2 against 20.3 at 32,768. At 36,000 columns they spill: 231
    #: against 194.
    held_sums: tuple[tuple[int, int, int], ...] = ((16897, 24576, 5), (24577, 32768, 2))
    held_sum_tile: Tile = Tile(32768, 1, 32, block=8192)
    #: Rows as few as these, if they have so many warps, are shared by a cluster of eight programs: 2.8 us against 6.5
    #: at 1 x 54,976, 4.9 against 5.3 at 64 x 32,768, and 8.3 against 7.0 at 128 x 32,768. With a residual 3.0 against
    #: 3.6 at 16 x 16,384, 3.5 against 3.9 at 32, and 4.8 against 4.5 at 64.
    shared_warps: int = 16
    shared_rows: int = 32
    shared_widest_from: int = 16384
    shared_widest_rows: int = 64
    #: RMSNorm's and LayerNorm's of nothing but x, which begin on 16 bytes, up to so many columns of 16 bits as many as
    #: these: 6.0 us against 6.5 at 68 x 45,696, 3.7 against 3.9 at 50 x 24,576, but 4.2 against 4.1 at 64, and 9.2
    #: against 7.8 at 100 x 45,696, which no longer run all at once; LayerNorm 6.1 against 7.6 at 80 x 32,768, but 8.7
    #: against 6.8 at 64 x 45,696.
    shared_widest_alone: tuple[tuple[tuple[int, int], ...], ...] = (
        ((24576, 48), (49152, 80), (1 << 40, 72)),
        ((24576, 48), (40960, 80), (1 << 40, 56)),
    )
    #: Of eight warps, a warp a program, where a thread would have so many loads of x and residual, and LayerNorm's that
    #: are loaded element by element so many: 2.2 us against 2.6 at 1 x 16,384, 2.6 against 3.5 at 3 x 12,001, with a
    #: residual 3.4 against 4.9; in fp32 with a residual 2.0 against 2.6 at 1 x 4,096, 3.3 against 4.2 at 32 x 8,192;
    #: LayerNorm 2.9 against 3.3 at 1 x 16,384, 3.3 against 4.1 at 3 x 12,001, 3.2 against 3.5 at 10,953. With fewer
    #: loads it is level, or slower: 1.9 against 1.7 at 1 x 4,096 in fp32, LayerNorm 2.8 against 2.5 at 1 x 6,001 in
    #: fp32, 2.7 against 2.6 at 3 x 6,201.
    shared_loads: int = 8
    #: With a residual in fp32 so many rows: 2.6 us against 3.1 at 33 x 4,096, 2.8 against 3.4 at 48, 4.0 against 4.2 at
    #: 48 x 8,192, 5.8 against 6.6 at 48 x 16,384; but 3.5 against 3.4 at 48 x 6,144, and 4.0 against 3.6 at 64.
    shared_summed_fp32_rows: int = 48
    shared_centred_singles: int = 31
    #: Of rows that do not begin on 16 bytes so many: 2.8 us against 4.8 at 8 x 20,001, 3.5 against 6.3 at 8 x 20,001
    #: of LayerNorm's, 5.7 against 8.5 at 32 with a residual; but 8.0 against 6.9 at 64. Wider ones as many as above
    #: and, element by element, so many for each SM: LayerNorm 3.8 us against 12.4 at 8 x 35,085, 21.3 against 31.4 at
    #: 168, 32.6 against 38.4 at 264, but 38.5 against 29.5 at 330, where weight and bias are late; RMSNorm 10.4 against
    #: 12.6 at 100 x 35,085.
    shared_odd_rows: int = 32
    shared_wide_odd_from: int = 24577
    shared_singles_per_sm: int = 2
    #: Wider sums with a residual have clusters of eight programs, up to so many columns, counted twice, however many
    #: rows there are: 264 us against 260 in slices at 2,048 x 65,536, but 11.8 against 12.2 at 64.
    #: Of six blocks five such programs are on an SM only with a limit of registers, where sums are stored first
    #: (above): 7.7 us against 8.2 stored with y at 64 x 40,968, and 9.1 first without it.
    summed_cluster_tiles: tuple[Tile, ...] = (
        Tile(81920, 1, 4, block=1024),
        Tile(98304, 1, 4, block=1024, registers=96),
        Tile(131072, 1, 4, block=1024),
    )
    summed_fp32_cluster_tiles: tuple[Tile, ...] = (Tile(131072, 1, 4, block=1024),)
    #: And from there on programs share a row, a slice each, with so many on an SM at the least: 512 us against 545 by
    #: programs that stay at 4,096 x 131,072, 520 against 546 at 2,048 x 262,144, 146 against 171 walked at 2,048 x
    #: 70,000. Where they are few all run at once, and the weight comes first: 5.3 us against 5.7 at 17 x 109,888.
    forward_slice: Tile = Tile(8192, 1, 4, 4, block=2048, late=4, registers=64)
    #: LayerNorm: 289 us against 315 by clusters at 2,048 x 131,072, 193 against 222 at 2,048 x 83,712, 10.0 against
    #: 14.2 at 16 x 262,144; level at 77 x 83,712 and 40 x 131,072. With 64 registers, which spill, 294 at the first.
    centred_forward_slice: Tile = Tile(8192, 1, 4, 4, block=2048, late=2, ahead=0, registers=72)
    #: Of fp32: 258 us against 288 at 2,048 x 65,536, 137 against 153 walked at 2,048 x 34,000; and wider sums: 275
    #: against 288 at 512 x 262,144, level at 131,072 columns.
    summed_slice: Tile = Tile(8192, 1, 4, 4, block=2048, late=4, ahead=0)
    #: Looks at what its peers have not published yet, before a program makes it itself.
    patience: int = 1 << 11

    #: FP8 both ways: columns of a tile for each warp, where columns have groups of their own, and where their bytes are
    #: those of the rows. With a residual there is more to hold: half of them are 360 us against 423 at 32,768 x 4,096.
    columnwise_columns: int = 16
    columnwise_columns_with_residual: int = 8
    transposed_columns: int = 32
    #: What a thread may have of registers beside those in which it holds values, up to so many of these: it is worth
    #: some more programs an SM, 187 us against 198 for 1 x 128, 75 against 79 for a given scale at 8,192 x 8,192. Where
    #: a thread holds more it would spill.
    registers_both_ways: int = 48
    held_both_ways: int = 32
    #: Rows are so far ahead of the tiles that need them, in bytes that these read: 187 us with 6 or 8 MiB, 191 with 12;
    #: for a given scale 156 with 8, 159 with 4, 168 with 16.
    columnwise_ahead: int = 8 << 20
    #: From so many rows on x is staged in shared memory for groups both ways: 169 us against 187 at 32,768 x 4,096, 150
    #: against 174 at 16,384 x 7,168. When it was 178 and 163 there, 2,048 x 4,096 took 18.7 against 17.7.
    staged_from: int = 4096
    #: The transpose of bytes alone.
    transpose_tile: Tile = Tile(128, 128, 4)
