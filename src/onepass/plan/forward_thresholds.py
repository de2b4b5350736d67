"""Where a forward's schedule ends and the next begins, and which tile serves which width."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.plan.tiles import Between, Tile


@dataclass(frozen=True)
class ForwardThresholds:
    #: From this many rows on, a tile of several rows is the full one of the tables below: one short row is too little
    #: work for a program (Liger's PR #1238 found 40 to 80 % there). With fewer rows it is the smallest tile that gives
    #: each thread one vector, which spreads a small problem over more SMs; but two, four, up to 16 of these together,
    #: as long as there would be more programs than so many, and one has no more elements than so many: LayerNorm of 849
    #: x 128 1.98 us in 54 programs against 2.18 in 14, of 3,000 x 256 2.6 in 94 against 2.75 in 188.
    #: The shortest, of no more than so many bytes, have these from more rows on: 1.84 us against 2.03 at 12,000 x 24,
    #: LayerNorm 2.37 against 2.46 at 13,739 x 40; with a residual level at 8,000 x 48, but 2.6 against 2.5 at 8,000 x
    #: 96.
    block_row_min_rows: int = 4096
    shortest_min_rows: int = 16384
    shortest_bytes: int = 96
    small_programs: int = 64
    small_elements: int = 8192
    small_warps: int = 16
    #: Rows that fill a warp each are put together too: RMSNorm's of so many bytes, however many there are, and of half
    #: as many again from so many rows on; LayerNorm's of 16 bits and so many bytes from so many rows on. With a
    #: residual 3.7 us against 4.2 at 3,153 x 264, 3.8 against 4.0 at 312 columns; RMSNorm 3.2 against 3.8 at 3,153 x
    #: 432, 3.4 against 3.5 at 2,000 x 768, but 2.8 against 2.5 at 1,000 x 640; in fp32 2.8 against 3.5 at 3,153 x 136;
    #: LayerNorm 3.9 against 4.6 at 4,000 x 512, but 2.3 against 2.2 at 500, and 5.2 against 4.8 at 384 in fp32.
    short_bytes: int = 1024
    short_rows: int = 2000

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
        Tile(1536, 2, 2, block=256),
        Tile(3072, 1, 4, block=1024),
        Tile(4096, 1, 8, block=2048),
        Tile(5120, 1, 4, block=1024),
        Tile(16384, 1, 8, block=2048),
    )
    #: Of nothing but x, of 16 bits, from so many columns on with fewer warps, so that more rows are on an SM at once:
    #: 5.0 us against 5.5 at 2,093 x 1,600, 8.2 against 8.6 at 4,096 rows, 50.2 against 52.4 at 32,768; 5.2 against 5.6
    #: at 2,093 x 1,792, but 3.8 against 3.7 at 1,000. Up to 3,072 columns it is 6 to 9 % at 2,093 rows too, and level
    #: for many, but 5 % slower at 1,000 x 2,048 and 13.9 us against 13.0 at 4,096 x 2,880. From 5,121 columns on 6.8
    #: against 8.0 at 1,056 x 5,376, 7.4 against 8.5 at 6,144 columns, 57.8 against 61.3 at 11,160 x 5,376; level at 64
    #: and 300 rows.
    plain_between: Between = ((1537, Tile(1792, 1, 2, block=256)), (5121, Tile(6144, 1, 4, block=512)))
    #: In fp32, by twice the columns, smaller programs in narrower blocks: 7.5 us against 8.1 at 20,000 x 160, 19.9
    #: against 21.2 at 60,000, 6.0 against 6.9 at 20,000 x 104, 3.1 against 3.4 at 4,000 x 192; level at 128 columns and
    #: for many.
    plain_fp32_between: Between = ((193, Tile(384, 8, 2, block=64)),)
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
    #: With a residual of 16 bits, by twice the columns. A warp a row: 6.5 us against 7.2 at 2,500 x 960, 8.2 against
    #: 9.3 at 4,000 x 896, 18.2 against 19.0 at 8,738 x 960; few are level, but 5.0 against 4.7 at 1,600 x 1,024. And
    #: narrower blocks: 8.9 against 9.7 at 1,000 x 4,096, 17.7 against 18.1 at 2,048 rows, 18.7 against 19.9 at 2,048 x
    #: 4,352; level at 128 rows and for many, but 6.2 against 6.0 at 500 x 4,352.
    summed_between: Between = ((1537, Tile(2048, 1, 1, block=256)), (7681, Tile(9216, 1, 4, block=512)))
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
    affine_first_columns: tuple[int, int] = (1024, 1536)
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
    #: But half as many of RMSNorm's in fp32, where a thread has so many elements or more and columns are no power of
    #: two: 5.0 us against 6.2 at 6,226 x 264, 6.4 against 8.0 at 6,875 x 384. LayerNorm's are 4 to 5 % slower so.
    prompt_held: int = 32
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
        Tile(1024, 1, 1, block=256),
        Tile(2048, 1, 1, block=256),
        Tile(3072, 1, 2, block=512),
        Tile(8192, 1, 4, block=1024),
        Tile(9216, 1, 8, block=2048, late=16),
        Tile(16384, 1, 8, block=2048, late=2, narrows=False),
    )
    #: In fp32, by twice the columns, in blocks half as wide: 5.0 us against 5.7 at 6,226 x 264, 5.2 against 6.0 at 320
    #: columns, 32.2 against 33.7 at 61,553 x 264, level at 6,226 x 384. With half the warps: 5.9 us against 7.5 at 200
    #: x 8,832, 19.7 against 21.4 at 1,000, 51.5 against 52.8 at 2,997; but 30.5 against 23.6 at 1,000 x 9,984.
    centred_fp32_between: Between = ((513, Tile(768, 4, 2, block=128)), (16386, Tile(18432, 1, 8, block=1024)))
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
    #: Of nothing but x, of 16 bits, whose rows begin on 4 bytes and not on 8, from so many columns on: two elements a
    #: thread, 65 us against 78 at 32,739 x 2,050, 65 against 80 at 26,195 x 2,562, 65 against 78 at 16,371 x 4,098, 3.9
    #: against 4.0 at 300 rows.
    half_odd_centred_from: int = 1793
    #: From 8,193 columns on 62 against 66 at 7,322 x 8,194, 22 against 31 at 2,000 rows.
    half_odd_centred_tiles: tuple[Tile, ...] = (
        Tile(3072, 1, 2, block=128),
        Tile(5120, 1, 4, block=256),
        Tile(8192, 1, 4, block=1024),
        Tile(9216, 1, 8, block=1024, late=2),
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
    #: Rows that begin at odd addresses are loaded in pieces of 2 or 4 bytes, which leaves nothing to win from wide
    #: blocks: narrow ones reach less far beyond the row (51 us against 103 at 319,566 x 105). By columns of any dtype.
    #: They are for few rows too, which want more warps: 1.6 us against 2.4 at 600 x 37, and 9.2 against 11.5 at 131,726
    #: x 35. LayerNorm 2.2 against 3.2 at 3,000 x 29, but 28.0 against 27.4 at 433,893. Where fewer programs than
    #: `small_programs` would have more rows than warps, each row has one: 1.8 us against 2.1 at 256 x 231 (residual);
    #: and in blocks of 64 columns where fewer than `lone_programs` would, RMSNorm's, LayerNorm's and RMSNorm's with a
    #: residual: 1.76 against 1.89 at 148 x 403, 1.98 against 2.21 at 400, LayerNorm 2.05 against 2.21 at 264 x 511;
    #: with a residual 1.90 against 2.69 at 148 x 403, 3.8 against 4.2 at 1,400 x 511, 4.0 against 4.4 at 2,000 x 403.
    #: RMSNorm of 600 to 800 is level or 4 % faster so, and of 1,400 x 511 3.1 against 2.9; with a residual 4.4 against
    #: 4.1 at 3,000 x 259. A warp has one row of 129 to 256 columns: with a residual in fp32 5.9 us against 6.9 at 4,648
    #: x 223, RMSNorm alone 26.7 against 28.9 at 100,000; but two of LayerNorm's, 21.6 against 23.8 at 100,000 x 131.
    lone_programs: tuple[int, int, int] = (384, 384, 1024)
    odd_forward_tiles: tuple[Tile, ...] = (
        Tile(16, 32, 4, block=16),
        Tile(32, 16, 2, block=16),
        Tile(48, 16, 4, block=16),
        Tile(72, 8, 2, block=16),
        Tile(128, 8, 4, block=32),
        Tile(256, 4, 4, block=32),
        Tile(512, 2, 1, block=64),
    )
    #: What is held in fp32, of so many columns and more, one row a warp: with a residual 2.0 us against 2.4 at 222 x
    #: 325, 7.5 against 8.0 at 4,096 x 511, 116.5 against 121.4 at 100,000; in fp32 149 against 157 at 100,000 x 385. It
    #: is 5.9 against 5.7 at 4,096 x 325 with a residual, and slower for 261 columns. In 16 bits 40 us against 62.
    odd_summed_between: Between = ((321, Tile(512, 1, 1, block=64)),)
    #: Of fp32 that begins anywhere, an element a thread, RMSNorm's alone and with a residual: 4.0 us against 4.4 at
    #: 2,000 x 515, 7.9 against 8.4 at 2,000 x 1,537, level for many; with a residual 8.4 against 10.3 at 2,000 x 771,
    #: 26.4 against 29.7 at 4,093 x 1,537, 2.4 against 3.2 at 300 x 515; but 20.8 against 19.5 at 2,000 x 2,051.
    odd_fp32_between: Between = ((513, Tile(640, 1, 2, block=64)), (641, Tile(1792, 1, 4, block=128)))
    odd_summed_fp32_between: Between = ((513, Tile(1088, 1, 2, block=64)), (1089, Tile(1792, 1, 4, block=128)))
    odd_centred_forward_tiles: tuple[Tile, ...] = (
        Tile(40, 32, 4, block=16),
        Tile(96, 8, 2, block=16),
        Tile(128, 4, 2, block=16),
        Tile(256, 8, 4, block=32),
        odd_forward_tiles[-1],
    )
    #: LayerNorm's in fp32 a row a warp: 2.1 us against 2.3 at 1,097 x 147, 2.9 against 3.0 at 4,000 x 131, many level;
    #: but 3.8 against 3.5 at 4,000 x 201.
    odd_centred_fp32_between: Between = ((129, Tile(160, 4, 4, block=32)),)
    #: In pieces of 2 bytes: 78 us against 85 at 431,654 x 139, 75 against 80.5 at 342,857 x 175, 17.2 against 19.1 at
    #: 49,423 x 231; level at 255 columns, where 8,000 rows take 5.2 against 4.9; and 2,000 to 8,000 rows lose 3
    #: to 12 % at the others too, 0.1 to 0.3 us. In fp32, or in pieces of 4, slower. The shortest in blocks of eight: 69
    #: us against 105 at 1,911,764 x 17, 62 against 73 at 25 columns, 2.2 against 2.6 at 6,000 x 33; RMSNorm alone 56
    #: against 80 at 17 columns, but 69 against 59 at 25.
    single_centred_between: Between = ((17, Tile(40, 32, 4, block=8)), (129, Tile(240, 4, 2, block=16)))
    single_between: Between = ((17, Tile(24, 32, 4, block=8)),)
    #: Of 16 bits that begin on 4 bytes, two elements a thread, RMSNorm's, LayerNorm's and RMSNorm's with a residual:
    #: 35.4 us against 38.9 at 169,466 x 198, 3.5 against 4.1 at 8,000; LayerNorm 2.9 against 3.4 at 8,000 x 98, but 1.7
    #: against 1.6 at 300, and of 150 to 254 columns level; with a residual 67 against 83 at 169,466 x 198, 12.1 against
    #: 15.0 at 24,000, 4.0 against 5.3 at 8,000 x 130.
    paired_between: tuple[Between, Between, Between] = (
        ((129, Tile(256, 8, 4, block=64)),),
        ((97, Tile(128, 8, 4, block=64)),),
        ((129, Tile(256, 4, 4, block=64)),),
    )
    #: Dense rows that do not begin on 16 bytes, from three columns up to so many, RMSNorm's, LayerNorm's and RMSNorm's
    #: with a residual, up to so many of those of 16 bits that begin on 4, and of those that begin on 8: a thread each
    #: (kernels/threads.py), with the bits of the tiles above. 32.8 us against 57.2 at 984,848 x 33, LayerNorm 33.3
    #: against 65.6, with a residual 64.1 against 114.8; 32.5 against 37.4 at 349,462 x 93, 34.7 against 43.6, 64.9
    #: against 66.5; 33 against 43 at 955,882 x 34, 41 against 125 at 3,611,111 x 9; in fp32 32.8 against 45.7 at
    #: 955,882 x 17, with a residual 64.5 against 82.5 at 492,424 x 33. But LayerNorm of 255,905 x 127 37.7 against
    #: 36.0, of 325,000 x 100 37.1 against 34.6, and with a residual 68.1 against 66.6 at 233,812 x 139. In pieces of 4
    #: bytes 33.7 against 35.5 at 184,365 x 182, LayerNorm 37.6 against 46.9 at 294,337 x 114, but 15.7 against 13.8 at
    #: 70,000 x 130; with a residual 66.8 against 69.9 at 294,337 x 114, but 70.4 against 67.5 at 207,126 x 162.
    threads_from: int = 3
    threads_to: tuple[int, int, int] = (143, 111, 111)
    threads_paired_to: tuple[int, int, int] = (182, 128, 128)
    threads_eights_to: tuple[int, int, int] = (143, 80, 95)
    #: Where rows are so many for each SM: of so many columns, of wider ones, of those that begin on more than one
    #: element, and of those of more than so many columns that begin on 4 bytes. 3.0 us against 3.1 at 24,242 x 33, 2.5
    #: against 2.4 at 12,121; 6.1 against 6.3 at 34,408 x 93, 4.8 against 4.2 at 17,204; 5.1 against 5.4 at 88,888 x
    #: 36, 3.9 against 3.6 at 44,444, but 3.6 against 3.4 at 80,000 x 20; 8.4 against 10.1 at 50,000 x 130, LayerNorm
    #: 8.5 against 9.4 at 98 columns, 7.8 against 7.0 at 34,000 x 114.
    threads_shortest: int = 64
    threads_rows: tuple[int, int, int, int] = (128, 256, 512, 352)
    #: Warps, by the columns: 41 us against 70 with one at 3,611,111 x 9; 4.03 against 3.84 at 28,070 x 57.
    threads_warps: tuple[tuple[int, int], ...] = ((40, 2), (512, 1))
    #: Short rows of 16 bits that begin anywhere, from so many columns on, RMSNorm's, LayerNorm's and RMSNorm's with a
    #: residual: some at once through shared memory (kernels/flat.py), where they are dense and have so many elements
    #: for each SM or more, and else in these tiles, with the same bits. 37.6 us against 42.6 at 349,462 x 93, LayerNorm
    #: 43.4 against 49.2, with a residual 66.6 against 83.9; 34.3 against 37.9 at 129,482 x 251, 36.0 against 42.1, 66.2
    #: against 79; 5.1 against 5.8 at 20,000 x 127. LayerNorm of 77 columns, RMSNorm of 33 and 39, and of 33
    #: with a residual are level or slower, and so are fewer rows: 3.0 against 2.8 at 5,000 x 127.
    flat_from: tuple[int, int, int] = (49, 81, 41)
    flat_elements: int = 12288
    flat_tiles: tuple[Tile, ...] = (
        Tile(128, 8, 4, block=32),
        Tile(256, 4, 4, block=32),
        Tile(512, 2, 1, block=64),
    )
    #: As many at once, up to eight, as leave a thread no more than so many elements to hold, by programs that come and
    #: go; or half as many elements, by so many programs for each SM that stay, with the next rows on their way: where x
    #: is all there is, LayerNorm's, 35.2 us against 37.9 at 190,058 x 171, 36.4 against 42.8 at 83,547 x 389, and
    #: RMSNorm's from so many columns on, 10.0 against 11.0 at 20,000 x 389, but 36.6 against 35.0 at 83,547. RMSNorm's
    #: of 171 columns 36.4 against 34.7, with a residual 71.6 against 66.5.
    flat_held: int = 128
    flat_staged_from: int = 257
    flat_per_sm: int = 16
    #: From so many columns of 16 bits on, through shared memory (kernels/odd.py), RMSNorm's and LayerNorm's: 70 us
    #: against 74 at 16,384 x 4,099, LayerNorm 73 against 86; 72 against 91 at 3,347 x 20,001, 80 against 103; 29
    #: against 35 at 2,000 x 12,001, 31 against 39; 7.3 against 8.5 at 500 x 8,001. With fewer elements than so many for
    #: each SM it is tile.py, with a column a thread as here, so that a row's bits are the same: 1 x 20,001 takes 4.0 us
    #: so, and 5.3 through shared memory, 132 x 8,001 3.9 and 4.5, LayerNorm of 500 x 4,099 5.3 and 6.0.
    #: LayerNorm's of 2,113 columns and more in two warps: 38 against 42 at 14,224 x 2,359, but 39.5 against 37.5 at
    #: 9,318 x 3,601.
    odd_from: int = 1281
    odd_elements: int = 20480
    odd_tiles: tuple[Tile, ...] = (
        Tile(1792, 1, 2, 8, 2, block=64),
        Tile(3520, 1, 2, 6, 2, block=64),
        Tile(6144, 1, 4, 3, 2, block=128),
        Tile(12288, 1, 8, 2, 2, block=256),
        Tile(24576, 1, 16, 1, 2, block=512),
    )
    odd_centred_tiles: tuple[Tile, ...] = (
        Tile(2112, 1, 2, 8, 2, block=64),
        Tile(2432, 1, 2, 6, 2, block=64),
        Tile(4224, 1, 4, 4, 2, block=128),
        Tile(6144, 1, 4, 3, 2, block=128),
        Tile(12288, 1, 8, 2, 2, block=256),
        Tile(16384, 1, 8, 1, 2, block=256),
        Tile(24576, 1, 16, 1, 2, block=512),
    )
    #: RMSNorm has a third more programs where each would have fewer rows than these: 10.9 us against 11.5 at 2,000 x
    #: 4,099, 8.2 against 9.0 at 3,000 x 2,049; but 72.4 against 70.4 at 16,384 x 4,099.
    odd_rounds: int = 8
    #: Wider ones of 16 bits, element by element: a block is as wide as its threads, with as many warps as leave each
    #: thread about this many at the most, LayerNorm's fewer; RMSNorm's have two warps at least. 67 us against 74 with
    #: half as many at 9,998 x 6,001; LayerNorm 73 with one warp against 90 at 115,163 x 521.
    single_elements: tuple[int, int] = (55, 33)
    #: Of so many columns and more, which are not kept packed, two elements side by side, and the weight late: 168 us
    #: against 245 at 8,192 x 16,001, 113 against 180 at 12,001 columns, 131 against 150 walked at 4,096 x 24,001, and
    #: 196 against 176 at 30,001 columns. With the weight of 16,001 columns a block ahead, 179.
    single_wide_from: tuple[int, int] = (6145, 4225)
    single_tiles: tuple[Tile, ...] = (
        Tile(12288, 1, 8, block=512, late=2),
        Tile(24576, 1, 16, block=1024, late=2, ahead=0),
    )
    #: LayerNorm, in fp32 too: 74 us against 107 at 10,907 x 5,501, and 75 against 78 at 14,637 x 4,099, but 16 against
    #: 14 at 2,000; 108 against 193 at 8,192 x 10,523, 212 against 458 walked at 4,096 x 30,001, 285 against 521 at
    #: 40,001 columns; in fp32 98 against 196 at 4,439 x 10,523. With fewer registers two rows are on an SM at 20,001
    #: columns, 122 us against 162, but at 30,001 it would spill, 277 against 212. Wider rows are shared: 147 us against
    #: 168 at 1,000 x 60,001, 9.2 against 38 at 23; at 41,267 columns 105 against 90, and 7.7 against 16.
    single_centred_tiles: tuple[Tile, ...] = (
        Tile(6144, 1, 4, block=512, late=2),
        Tile(12288, 1, 8, block=512, late=2),
        Tile(20480, 1, 16, block=1024, late=2, registers=64),
        Tile(32768, 1, 16, block=1024, late=2),
        Tile(40960, 1, 32, block=2048, late=2),
        Tile(45056, 1, 32, block=2048, late=2, ahead=0),
    )
    #: And those of 16 bits, loaded in pieces of 4 or 8 bytes, that are too wide for the tiles above: 82 us against 101
    #: walked at 4,096 x 20,002, level at 30,004 columns.
    wide_odd_tile: Tile = Tile(24576, 1, 16, block=4096, late=2, ahead=0)

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
    summed_cluster: Tile = Tile(131072, 1, 4, block=1024)
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
    #: Of fp32 that begins anywhere half as wide, RMSNorm's, also with a residual, and LayerNorm's: 99 us against 113 at
    #: 394 x 85,885, with a residual 155 against 183, LayerNorm 118 against 155; with a residual 36 against 45 at 100 x
    #: 70,001; 3.7 against 3.5 at 9 x 34,001, of which wider ones are level or faster.
    odd_fp32_slice: Tile = Tile(4096, 1, 4, 4, block=2048, late=4, ahead=0)
    odd_centred_fp32_slice: Tile = Tile(4096, 1, 4, 4, block=512, late=4, ahead=0)
    #: In pieces of 2 bytes: 512 us against 756 at 2,048 x 131,073, 26 against 36 at 89 x 111,055; LayerNorm 601 against
    #: 672 at 2,000 x 131,073, 137 against 147 at 1,000 x 60,001.
    odd_forward_slice: Tile = Tile(4096, 1, 4, 4, block=512, late=4, ahead=0)
    #: RMSNorm's, LayerNorm's and those with a residual, of 16 bits all, from so many columns on in slices that wait in
    #: shared memory (kernels/odd_split.py): 100 us against 168 walked at 2,000 x 44,001, 298 against 494 at 131,073;
    #: LayerNorm 70 against 97 at 1,000 x 44,001, 205 against 311 at 131,073; with a residual 195 against 325 at 2,000 x
    #: 44,001, 561 against 1,017 at 131,073; 7.6 against 9.4 at 64 x 44,001. Up to so many programs for each SM they are
    #: split as above, with the same bits: 3.1 us against 4.6 at 1 x 44,001, 4.3 against 5.0 at 16, but LayerNorm 8.9
    #: against 6.6 at 32. One row of 25,001 shared by a cluster took 2.7 us, and takes 3.1; 60,001 3.3 and 3.2.
    odd_shared_from: int = 24577
    odd_shared_few: int = 2
    odd_slice: Tile = Tile(4096, 1, 4, 6, block=1024)
    #: From so many columns on, RMSNorm's, LayerNorm's and RMSNorm's with a residual, slices of which there are fewer:
    #: 97 us against 102 at 219 x 400,001, 106 against 122 at 125 x 700,001, LayerNorm 127 against 142 at 549 x 160,001;
    #: RMSNorm of 200,001 columns 97 against 101, but 3.8 against 3.4 for one row, as LayerNorm 5.1 against 4.4 for one
    #: of 160,001. In half the warps slices of 4,096 are 96 against 98 at 1,999 x 44,001, and 3.9 against 3.2 for one
    #: row.
    odd_wide_slice: Tile = Tile(6144, 1, 4, 4, block=1024)
    odd_shared_wide_from: tuple[int, int, int] = (262145, 131073, 262145)
    #: In pieces of 4 the slices above spill: 338 us against 719 at 2,048 x 131,074, LayerNorm 405 against 519, 39
    #: against 79 and 45 against 65 at 200 rows.
    half_odd_forward_slice: Tile = Tile(4096, 1, 4, 4, block=1024, late=4, ahead=0, registers=64)
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
