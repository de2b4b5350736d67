"""Which schedule and which tile serves a forward whose rows do not all begin on 16 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.plan.tiles import Between, Tile


@dataclass(frozen=True)
class OddForwardThresholds:
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
    #: 26.4 against 29.7 at 4,093 x 1,537, 2.4 against 3.2 at 300 x 515; but 20.8 against 19.5 at 2,000 x 2,051. Wider
    #: ones in blocks that reach less far beyond the row, two elements a thread, or four: RMSNorm 17.4 against 18.5 at
    #: 4,000 x 2,049, 14.1 against 15.0 at 1,000 x 6,143, 85 against 110 at 4,000 x 10,501, but 10.7 against 10.3 at 459
    #: x 8,191; with a residual 2.7 against 3.2 at 132 x 1,801, 3.2 against 3.7 at 132 x 2,303, 11.3 against 12.9 at 459
    #: x 4,291, 69 against 72 at 4,000, 148 against 180 at 4,000 x 8,501; but 21.1 against 20.3 at 1,000 x 3,999, and
    #: 142 against 123 at 4,000 x 7,501.
    odd_fp32_between: Between = (
        (513, Tile(640, 1, 2, block=64)),
        (641, Tile(1792, 1, 4, block=128)),
        (2049, Tile(2304, 1, 4, block=256)),
        (2561, Tile(7680, 1, 8, block=512)),
        (10241, Tile(12288, 1, 16, block=1024)),
    )
    odd_summed_fp32_between: Between = (
        (513, Tile(1088, 1, 2, block=64)),
        (1089, Tile(1792, 1, 4, block=128)),
        (1793, Tile(2048, 1, 8, block=512)),
        (2049, Tile(2560, 1, 4, block=512)),
        (2561, Tile(3584, 1, 8, block=512)),
        (4097, Tile(7168, 1, 8, block=512)),
        (8193, Tile(12288, 1, 16, block=1024)),
    )
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
    #: RMSNorm's wider ones of nothing but x, by tiles of their own: two elements a thread, in blocks that reach less
    #: far beyond the row. 34.1 us against 38.5 at 65,280 x 514, 3.0 against 3.5 at 2,000 x 522, 2.1 against 2.8 at 300;
    #: 33.8 against 37.4 at 35,320 x 950, 3.65 against 4.45 at 2,000 x 874; 33.5 against 34.9 at 28,008 x 1,198, 4.8
    #: against 5.5 at 2,000 x 1,562, 33.9 against 36.8 at 16,116 x 2,082, 5.6 against 6.7 at 2,000; but 4.0 against 3.75
    #: at 1,000 x 1,730, and 4.9 against 4.6 at 1,000 x 2,306.
    paired_plain_between: Between = (
        (513, Tile(640, 2, 1, block=64)),
        (641, Tile(1024, 1, 2, block=128)),
        (1025, Tile(1640, 1, 2, block=256)),
        (2049, Tile(2240, 1, 2, block=256)),
    )
    #: And those that begin on 4 bytes or 8, in half the warps: 33.5 us against 38.5 at 10,915 x 3,074, 4.9 against 5.8
    #: at 1,000, 33.3 against 35.2 at 9,351 x 3,588; 33.4 against 36.7 at 6,447 x 5,204, 6.7 against 7.8 at 1,000, 34.2
    #: against 37.4 at 6,211 x 5,402; level at 300 rows, at 2,690 columns and from 6,402 on for many.
    half_plain_between: Between = ((3073, Tile(3840, 1, 4, block=512)), (5121, Tile(6144, 1, 4, block=512)))
    #: LayerNorm's of nothing but x that begin on 8 bytes, of 16 bits, and by twice the columns of fp32: 36.0 us against
    #: 39.4 at 103,563 x 324, 9.0 against 9.95 at 20,000, level at 300, but 38.1 against 36.0 at 102,300 x 328, which
    #: begin on 16. In fp32 34.5 against 49.0 at 103,563 x 162, 5.1 against 7.1 at 8,000 x 198, 1.95 against 2.7 at 300
    #: x 230; but 38.8 against 34.1 at 129,055 x 130. Wide ones in blocks that reach less far: 101 against 113 at 3,000
    #: x 15,230, 63.5 against 73.2 at 2,000 x 14,002, 16.1 against 17.3 at 300, 37.2 against 38.6 at 1,919 x 8,742; but
    #: 54.0 against 51.9 at 2,000 x 12,002, of which they reach as far.
    centred_eights_between: Between = ((321, Tile(384, 2, 1, block=128)),)
    centred_fp32_eights_between: Between = (
        (321, Tile(504, 4, 2, block=64)),
        (16385, Tile(18432, 1, 16, block=2048, late=2)),
        (24577, Tile(32768, 1, 16, block=2048, late=2)),
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
    #: so, and 5.3 through shared memory, 132 x 8,001 3.9 and 4.5, LayerNorm of 500 x 4,099 5.3 and 6.0. LayerNorm's of
    #: 2,113 columns and more in two warps: 38 against 42 at 14,224 x 2,359, but 39.5 against 37.5 at 9,318 x 3,601.
    #: RMSNorm's, LayerNorm's and RMSNorm's with a residual begin at so many: 38.3 against 39.8 at 32,048 x 1,047, but
    #: 42.2 against 40.3 at 43,073 x 779; LayerNorm 39.1 against 42.1 at 27,938 x 1,201, 41.5 against 40.4 at 1,047
    #: columns; with a residual 74.3 against 77.8 at 53,008 x 633, 72.4 against 79.4 at 43,073 x 779, 72.3 against 78.5
    #: at 27,938 x 1,201. By one warp a row RMSNorm and LayerNorm are 6 % faster so from 633 columns on, but few are 2
    #: to 17 % slower.
    odd_from: tuple[int, int, int] = (1025, 1153, 625)
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
    #: Of nothing but x, of 16 bits, whose rows begin on 4 bytes and not on 8, from so many columns on: two elements a
    #: thread, 65 us against 78 at 32,739 x 2,050, 65 against 80 at 26,195 x 2,562, 65 against 78 at 16,371 x 4,098, 3.9
    #: against 4.0 at 300 rows.
    half_odd_centred_from: int = 1793
    #: From 8,193 columns on 62 against 66 at 7,322 x 8,194, 22 against 31 at 2,000 rows. Of 5,121 to 8,192 columns, in
    #: blocks as narrow as that takes, 36.2 against 38.3 at 6,211 x 5,402, 17.2 against 18.2 at 2,000 x 6,678, 2 to 5 %
    #: at 300 rows.
    half_odd_centred_tiles: tuple[Tile, ...] = (
        Tile(3072, 1, 2, block=128),
        Tile(8192, 1, 4, block=256),
        Tile(9216, 1, 8, block=1024, late=2),
    )
    #: Slices of fp32 that begins anywhere are half as wide, RMSNorm's, also with a residual, and LayerNorm's: 99 us
    #: against 113 at 394 x 85,885, with a residual 155 against 183, LayerNorm 118 against 155; with a residual 36
    #: against 45 at 100 x 70,001; 3.7 against 3.5 at 9 x 34,001, of which wider ones are level or faster.
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
    #: In pieces of 4 bytes slices as wide as others spill: 338 us against 719 at 2,048 x 131,074, LayerNorm 405 against
    #: 519, 39 against 79 and 45 against 65 at 200 rows.
    half_odd_forward_slice: Tile = Tile(4096, 1, 4, 4, block=1024, late=4, ahead=0, registers=64)
