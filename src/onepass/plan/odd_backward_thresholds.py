"""Which schedule and which tile serves a backward whose rows do not all begin on 16 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.plan.tiles import Between, Tile

_EIGHTS_OF_FP32: Between = (
    (2401, Tile(3072, 1, 4, 2, 4, block=512)),
    (3841, Tile(4096, 1, 4, 2, 3, block=256)),
    (4097, Tile(5760, 1, 4, 2, 3, block=256)),
    (5761, Tile(8192, 1, 4, 2, 2, block=256)),
)


@dataclass(frozen=True)
class OddBackwardThresholds:
    #: Of rows at odd addresses, by columns of any dtype. In pieces of 2 bytes: 42 us against 52 at 4,093 x 4,099. Short
    #: ones in narrow blocks, and many programs, which hide each other's waiting: 64 us against 138 at 528,970 x 41,
    #: LayerNorm 73 against 181. LayerNorm's sums leave less room for warps.
    odd_backward_tiles: tuple[Tile, ...] = (
        Tile(48, 8, 2, 16, 2, block=16),
        Tile(128, 8, 2, 8, 3, block=16),
        Tile(320, 4, 2, 8, 3, block=32),
        Tile(512, 2, 2, 8, 3, block=128),
        Tile(1280, 1, 2, 8, 3, block=256),
        Tile(2400, 1, 4, 4, 3, block=256),
        Tile(5120, 1, 8, 2, 2, block=1024),
        Tile(16384, 1, 8, 1, 2, block=2048),
    )
    odd_centred_backward_tiles: tuple[Tile, ...] = (*odd_backward_tiles[:-2], Tile(5120, 1, 4, 2, 3, block=512))
    #: In pieces of 8 bytes, from so many columns on: 25 us against 35 at 300,000 x 36, LayerNorm 28 against 35; 42
    #: against 61 at 68 columns, LayerNorm 47 against 66, 6.9 against 8.5 at 10,000; 44 against 53 at 38 of fp32.
    eights_from: int = 17
    eights_backward_tiles: tuple[Tile, ...] = (
        Tile(48, 16, 2, 8, 3, block=16),
        Tile(64, 16, 4, 4, 4, block=32),
        Tile(96, 16, 4, 4, 3, block=32),
    )
    #: And of 16 bits those that are slower as rows that begin on 16 bytes: RMSNorm's, 55.0 us against 70.9 at 13,421 x
    #: 2,500, 13.2 against 16.2 at 2,000, 55.3 against 68.5 at 8,200 x 4,092, 57.3 against 65.2 at 5,987 x 5,604;
    #: LayerNorm's, 55.9 against 80.2 at 13,421 x 2,500, 57.3 against 79.8 at 8,603 x 3,900, 60.0 against 69.3 at 47,934
    #: x 700, 58.0 against 65.3 at 92,182 x 364, 61.3 against 68.2 at 164,482 x 204; and with a residual RMSNorm's, 85.2
    #: against 90.2 at 8,200 x 4,092. In between they are level. Of the widest loads wait in registers: 60.3 against
    #: 68.0 at 4,142 x 8,100, 65.2 against 69.3 at 5,353 x 6,268, but 22.4 against 22.0 at 1,000 x 8,100; with a
    #: residual 74.8 against 89.2 at 5,265 x 6,372, 78.8 against 86.7 at 6,568 x 5,108, 23.3 against 23.8 at 1,000 x
    #: 6,372. The shortest of LayerNorm's 63.9 against 75.4 at 335,544 x 100, 9.5 against 10.9 at 20,000 x 116, 4.6
    #: against 5.3 at 2,000; 60.0 against 63.6 at 215,092 x 156, level at 6,000; RMSNorm's are level or slower so.
    eights_of_16_bits_between: tuple[Between, Between, Between] = (
        (
            (2049, Tile(3072, 1, 4, 2, 4, block=512)),
            (3841, Tile(4096, 1, 4, 2, 3, block=1024)),
            (5121, Tile(5632, 1, 4, 2, 3, block=512)),
            (6145, Tile(8192, 1, 4, 2, 2, block=512)),
        ),
        (
            (97, Tile(128, 4, 1, 8, 4, block=32)),
            (129, Tile(160, 4, 1, 8, 3, block=32)),
            (193, Tile(320, 4, 1, 8, 3, block=64)),
            (321, Tile(448, 2, 1, 8, 3, block=64)),
            (641, Tile(1024, 1, 2, 4, 5, block=256)),
            (2049, Tile(3584, 1, 4, 2, 4, block=512)),
            (3841, Tile(4096, 1, 4, 2, 3, block=1024)),
        ),
        ((3841, Tile(4096, 1, 4, 2, 3, block=1024)), (4097, Tile(8192, 1, 4, 2, 2, block=512))),
    )
    #: And of fp32, by twice the columns, in blocks of which a thread has 8 bytes of each, RMSNorm's and LayerNorm's:
    #: 54.2 us against 67.1 at 8,516 x 1,970, 55.7 against 72.0; 54.2 against 66.7 at 13,957 x 1,202, 56.8 against 71.3,
    #: 12.0 against 14.2 at 2,000, 7.1 against 8.1 at 500; 55.6 against 64.5 at 6,209 x 2,702, 11.4 against 12.2 at
    #: 1,000 x 2,066; the widest with loads that wait in registers 57.3 against 65.6 at 4,238 x 3,958, 59.8 against
    #: 68.2, level at 1,000 x 3,458. LayerNorm's shortest 60.5 against 84.8 at 171,196 x 98, 57.8 against 70.7 at
    #: 137,518 x 122, 10.2 against 11.3 at 20,000 x 66, many of these level. With a residual 71.7 against 82.1 at 10,472
    #: x 1,602, 71.4 against 86.1 at 8,380 x 2,002, 22.7 against 26.1 at 2,000, 72.0 against 83.6 at 6,984 x 2,402, 22.4
    #: against 22.9 at 1,000 x 3,458; but 9.6 against 8.7 at 500 x 1,802.
    eights_of_fp32_between: tuple[Between, Between, Between] = (
        _EIGHTS_OF_FP32,
        ((129, Tile(256, 4, 1, 8, 4, block=32)), *_EIGHTS_OF_FP32),
        ((2561, Tile(3560, 1, 4, 2, 3, block=256)), (3561, Tile(7400, 1, 4, 3, 2, block=256))),
    )
    #: LayerNorm's that begin on 8 bytes, from so many columns of 16 bits and of fp32 on, are taken in turns too: 66.4
    #: us against 74.0 at 4,142 x 8,100, 21.9 against 23.4 at 1,000 x 7,300, level at 6,268 columns; in fp32, in blocks
    #: half as wide, 65.3 against 87.7 at 2,580 x 6,502, 31.0 against 39.3 at 1,000, 62.8 against 72.5 at 3,818 x 4,394.
    centred_eights_in_turns_from: tuple[int, int] = (6145, 4097)
    #: In pieces of 4 bytes; between the last two, as rows that begin on 16 bytes. Short ones, without a residual, are
    #: not asked for ahead, element by element: 39 us against 44 at 300,000 x 54, 21.4 against 23.9 at 22 columns.
    half_odd_short_tile: Tile = Tile(64, 32, 2, 16, 1, block=16)
    #: LayerNorm's of fp32: 44 us against 57 at 300,000 x 33, 4.8 against 6.7 at 1,000, but 8.0 against 7.8 at 10,000.
    odd_centred_wide_short_tile: Tile = Tile(48, 8, 2, 16, 1, block=16)
    half_odd_backward_tiles: tuple[Tile, ...] = (
        Tile(48, 32, 2, 16, 3, block=16),
        Tile(192, 4, 1, 8, 3, block=16),
        Tile(512, 2, 1, 8, 3, block=64),
    )
    half_odd_wide_backward_tile: Tile = Tile(5120, 1, 4, 2, 3, block=512)
    half_odd_wide_from: int = 3073
    #: Dense rows that do not begin on 16 bytes, by twice the columns of fp32, RMSNorm's, LayerNorm's and RMSNorm's
    #: with a residual: a thread each (kernels/threads.py), in as many programs as have registers without spilling,
    #: where rows are so many for each SM, of so many columns and of wider ones, and of those that begin on 8 bytes. 95
    #: us against 160 at 1,621,621 x 37, LayerNorm 118 against 188, with a residual 124 against 217; 95 against 140 at
    #: 952,380 x 63, 98 against 267 at 3,529,411 x 17, in fp32 93 against 113 at 909,090 x 33; 6.7 against 8.0 at 20,000
    #: x 37. But 8.5 against 8.1 at 20,000 x 63, LayerNorm 18.3 against 17.4 at 60,000, and of 36 columns 18.7 against
    #: 17.0 at 177,777 rows, 97 against 103 at 1,666,666. Of 94 columns 125 against 118, LayerNorm of 77 180 against
    #: 148.
    threads_backward_tiles: tuple[tuple[Tile, ...], tuple[Tile, ...], tuple[Tile, ...]] = (
        (Tile(10, 64, 2, 16, 2), Tile(20, 64, 2, 12, 2), Tile(28, 64, 2, 8, 2), Tile(48, 64, 2, 6, 2),
         Tile(80, 64, 2, 4, 2)),
        (Tile(10, 64, 2, 14, 2), Tile(20, 64, 2, 8, 2), Tile(28, 64, 2, 6, 2), Tile(66, 64, 2, 4, 2)),
        (Tile(10, 64, 2, 16, 2), Tile(20, 64, 2, 10, 2), Tile(28, 64, 2, 8, 2), Tile(40, 64, 2, 6, 2),
         Tile(80, 64, 2, 4, 2)),
    )  # fmt: skip
    threads_backward_shortest: int = 48
    threads_backward_rows: tuple[int, int, int] = (128, 384, 2048)
    #: Dense rows of so many bytes and more, which could be loaded in pieces of 4 bytes at the most, are taken in turns
    #: (kernels/turns.py): 106 us against 136 at 16,384 x 4,099, LayerNorm 115 against 175, with a residual 145 against
    #: 403 at 14,637 rows; 90 against 92 at 412,371 x 97, LayerNorm 96 against 100, but 98 against 94 at 493,827 x 81.
    #: With a residual 113 against 196 there, 146 against 210 at 816,326 x 49, but 157 against 143 at 975,609 x 41. By
    #: the columns with what may come before them. Shorter ones in narrow blocks of many rows, which reach less far
    #: beyond them; but those that fill two blocks of 32, or one, in turns too, by bytes of an element and columns: 45
    #: us against 49 at 300,000 x 51, LayerNorm 47 against 57; in fp32 36 against 125 at 25 columns, LayerNorm 37
    #: against 138, and 5.4 against 8.5 at 10,000 x 9.
    turns_from_bytes: int = 194
    summed_turns_from_bytes: int = 98
    turns_short: tuple[tuple[int, int, int], ...] = ((2, 9, 25), (2, 49, 57), (4, 5, 29))
    turns_tiles: tuple[Tile, ...] = (
        Tile(64, 8, 2, 8, 3, block=32),
        Tile(224, 8, 2, 4, 3, block=32),
        Tile(400, 8, 4, 2, 4, block=64),
        Tile(1030, 1, 1, 8, 4, block=128),
        Tile(2304, 1, 2, 4, 4, block=256),
        Tile(3840, 1, 4, 2, 4, block=512),
        Tile(4608, 1, 4, 2, 3, block=512),
        Tile(7168, 1, 4, 2, 3, block=1024),
        Tile(16391, 1, 8, 1, 3, block=2048),
    )
    #: From so many columns to so many, fewer rows than these have a tile of their own. Short ones a warp each: 5.2 us
    #: against 7.6 at 425 x 369, LayerNorm 12.8 against 16.1 at 8,000; 19.0 against 18.5 at 20,000 x 301, 9.0 against
    #: 8.4 at 5,000 x 175; the shortest do not gain, 5.8 against 5.5 at 3,000 x 49 with a residual. Others fewer
    #: programs, whose partials are soon summed: 10.4 us against 11.7 at 2,500 x 1,001, LayerNorm 11.9 against 13.7,
    #: with a residual 13.3 against 16.8, and 10.2 against 12.2 at 1,661 x 675; a warp each 6.5 against 7.6 at 1,447 x
    #: 533, LayerNorm 7.8 against 9.3, 9.4 against 10.5 at 3,000; but 12.1 against 11.4 at 8,000 x 433.
    turns_few: tuple[tuple[int, int, int, Tile], ...] = (
        (65, 224, 4096, turns_tiles[3]),
        (225, 400, 16384, turns_tiles[3]),
        (401, 800, 4096, Tile(800, 1, 1, 4, 4, block=128)),
        (801, 1030, 4096, turns_tiles[4]),
    )
    summed_turns_few: tuple[tuple[int, int, int, Tile], ...] = (*turns_few[:2], (401, 1030, 4096, turns_tiles[4]))
    #: In fp32, with fewer stages and narrower blocks: 57 us against 62 at 39,260 x 433, LayerNorm 59 against 63; 56.8
    #: against 64 at 21,223 x 801, LayerNorm 58 against 65 at 16,983 x 1,001, but 64 against 62 at 28,286 x 601; with a
    #: residual 73 against 82 there, 75 against 83 at 801 columns, but 87 against 81 at 1,001.
    turns_of_fp32_between: Between = (
        (729, Tile(1150, 1, 1, 8, 3, block=64)),
        (1151, Tile(2304, 1, 2, 4, 3, block=128)),
    )
    summed_turns_of_fp32_between: Between = ((801, Tile(1700, 1, 2, 4, 3, block=128)),)
    #: Many, from so many columns to so many and so many rows on: 79 us against 88 at 16,766 x 1,501, LayerNorm 81
    #: against 88; LayerNorm 81 against 101 at 10,062 x 2,501; 81 against 91 at 8,674 x 2,901, 83 against 90 at 7,188 x
    #: 3,501; with a residual 43.5 against 47.8 at 5,130 x 1,735, 103 against 120 at 14,504, 104 against 119 at 11,433
    #: x 2,201, 103 against 122 at 7,861 x 3,201. Fewer are level, or slower: 14.0 against 12.3 at 722 x 2,901, with a
    #: residual 16.3 against 15.3 at 1,397 x 1,501, 122 against 117 at 6,451 x 3,901.
    turns_of_fp32_many: tuple[tuple[int, int, int, Tile], ...] = (
        (2305, 3100, 1024, Tile(3100, 1, 4, 3, 3, block=256)),
        (3101, 5500, 512, Tile(5500, 1, 4, 2, 3, block=256)),
        (5501, 6600, 2048, Tile(6600, 1, 4, 3, 2, block=256)),
        (6601, 8400, 1536, Tile(8400, 1, 8, 2, 2, block=512)),
    )
    summed_turns_of_fp32_many: tuple[tuple[int, int, int, Tile], ...] = (
        (2305, 3700, 2048, Tile(3700, 1, 4, 2, 3, block=256)),
        (3701, 5000, 2048, Tile(5000, 1, 4, 3, 2, block=256)),
        (5001, 7200, 2048, Tile(7200, 1, 8, 2, 2, block=512)),
    )
    #: Of 16 bits, RMSNorm's, LayerNorm's and those with a residual. Rows that come to a little more than 256 columns
    #: fill few of a fifth block of 64: 77 us against 84 at 167,772 x 250, LayerNorm 80 against 95, 33 against 36 at
    #: 49,734 x 253; but 77 against 74 at 162,569 x 258, LayerNorm 79 against 84. LayerNorm's of three stages and not
    #: four 16.9 against 18.0 at 698 x 6,001, 106 against 107 at 8,387. With a residual in wider blocks from 177 columns
    #: on, 94 against 103 at 226,719 x 185, and with fewer stages, for which no reason was found: 107 against 132 at
    #: 135,664 x 371, 37 against 43 at 38,130 x 330; 104 against 126 at 18,634 x 2,701, 35.5 against 40.8 at 3,594 x
    #: 3,501; level at 291 and 2,401. Wider blocks again from there on: 124 against 128 at 12,279 x 4,099, 18.5 against
    #: 20.5 at 1,023, 116 against 127 at 8,387 x 6,001, 19.4 against 22.1 at 599 x 7,001.
    turns_of_16_bits_between: tuple[Between, Between, Between] = (
        ((257, Tile(263, 8, 2, 4, 3, block=32)),),
        ((257, Tile(272, 8, 2, 4, 3, block=32)), (4609, Tile(6144, 1, 8, 1, 3, block=1024))),
        (
            (177, Tile(304, 8, 4, 2, 4, block=64)),
            (305, Tile(400, 8, 4, 2, 3, block=64)),
            (2305, Tile(3584, 1, 4, 2, 3, block=512)),
            (3585, Tile(4608, 1, 4, 2, 3, block=1024)),
            (4609, Tile(7168, 1, 8, 1, 3, block=2048)),
        ),
    )
    #: With a residual fewer programs for fewer than so many: 16.7 us against 18.5 at 2,417 x 1,735, 8.9 against 10.0 at
    #: 1,000 x 1,601, but 16.1 against 15.5 at 3,000 x 1,401; 16.9 against 20.0 at 2,045 x 2,051, 35.6 against 37.0 at
    #: 6,135, but 113 against 107 at 24,540.
    summed_turns_of_16_bits_few: tuple[tuple[int, int, int, Tile], ...] = (
        (1401, 1900, 2500, Tile(1900, 1, 4, 2, 3, block=512)),
        (1901, 2304, 8192, Tile(2304, 1, 4, 2, 3, block=512)),
    )
    #: LayerNorm's wider ones with twice the warps: 121 us against 131 at 11,997 x 5,001.
    centred_turns_tiles: tuple[Tile, ...] = (*turns_tiles[:-2], Tile(6144, 1, 8, 1, 4, block=1024), turns_tiles[-1])
    #: Taken in turns (kernels/split_turns.py), by the columns up to which a slice serves: 154 us against 193 at 4,096 x
    #: 20,001, 127 against 166 at 2,048 x 32,769, 254 against 331 at 65,537 columns, with a residual 182 against 261,
    #: 154 against 225 and 303 against 430; 56.5 against 59 at 89 x 111,055. LayerNorm 176 against 220 at 20,001
    #: columns, 201 against 251 at 8,192 x 12,001, 118 against 127 at 1,000 x 40,001, in single elements up to 65,536
    #: columns, 470 against 527 at 4,096 x 47,001, 485 against 681 at 62,001, but 474 against 416 at 65,537; in pieces
    #: of 4 bytes 507 against 484 at 54,282. In fp32 3 to 15 % less at 2,048 rows; 300 of LayerNorm's are 2 % slower,
    #: and 6 % at 20,002 columns of bf16. RMSNorm alone has a ring instead, where there is Gluon.
    #: Few of them that are wide have the narrower slices: 16.9 us against 18.7 at 57 x 54,283, with a residual 28.9
    #: against 31.2 at 129 rows, 17.5 against 18.5 at 24 x 82,703; but 62.1 against 61.1 at 400 x 54,283.
    turns_shared: tuple[tuple[int, Tile], ...] = (
        (24576, Tile(1024, 1, 1, 8, 3)),
        (49152, Tile(1024, 1, 2, 8, 3)),
        (1 << 31, Tile(2048, 1, 2, 4, 3)),
    )
    turns_shared_few: tuple[tuple[int, Tile], ...] = (turns_shared[0], (1 << 31, turns_shared[1][-1]))
    centred_turns_shared: tuple[tuple[int, Tile], ...] = ((40960, Tile(1024, 1, 1, 8, 3)),)
    centred_single_turns_shared: tuple[tuple[int, Tile], ...] = ((65536, Tile(1024, 1, 1, 8, 3)),)
    #: Many with a residual, from so many columns of 16 bits and of fp32 on, though one program could hold them, in fp32
    #: those that begin on 8 bytes too: 79.0 us against 86.8 at 7,137 x 4,701, 77.5 against 83.9 at 6,635 x 5,057, 24.8
    #: against 25.1 at 1,000 x 7,022, but 20.5 against 19.5 at 1,000 x 5,058; in fp32 79.1 against 87.7 at 2,246 x
    #: 7,467, 78.6 against 89.8 at 7,466 columns, 28.9 against 29.8 at 1,000 x 4,394. RMSNorm alone is level or slower,
    #: and so is LayerNorm of 16 bits.
    summed_turns_shared_from: tuple[int, int] = (4609, 4097)
