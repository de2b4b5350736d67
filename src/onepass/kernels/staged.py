"""FP8 in groups both ways, as columnwise.py makes it, from shared memory: for RMSNorm of whole tiles, the common case.

Every value has the bits that it has there, because the parts are the same, and so is the order in which a row is
summed. What differs is where x waits, and which thread has what: Triton holds x in registers, and lays it out as it is
loaded. Here asynchronous copies put it into shared memory, from which it is read as it is needed: rows by groups, and
the columns of a tile with 16 rows of each side by side in a thread, so that their bytes are stored as they are. That
leaves room for more than one row, and more columns, in a program, which then finds its place and the weight once for
all of them: 178 us against 187 at 32,768 x 4,096, 94 against 99 at 8,192 x 8,192. Where a tile asks for the weight
before it waits for anything, and for the rows' statistics just once, to wait for them, it is 172 and 90; and with fewer
instructions for addresses and pairs of bf16, and reads of shared memory that do not meet on a bank, 169 and 88.

It is written in Gluon, in which layouts and shared memory have names. Triton's interpreter does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from onepass.kernels.mailbox import WAIT_WHILE_ONES as WAIT
from onepass.kernels.parts import PASSING, rstd_of, scale_and_shift, with_square
from onepass.kernels.quantize import above, converted, packed, rounded, scale_place, scaled, steps_from, widened
from onepass.kernels.sums import row_sum

#: Rows of a tile; columns of a group; columns of a tile for each warp, and how many tiles a program makes in turn.
TILE = gl.constexpr(128)
GROUP = gl.constexpr(128)
COLUMNS = gl.constexpr(16)
BESIDE = gl.constexpr(2)
#: Rows that a program quantizes.
ROWS = gl.constexpr(2)

WAIT_FOR_ONE = gl.constexpr(WAIT.value)
#: Two that lie side by side, which are both asked for before either is looked at.
WAIT_FOR_TWO = gl.constexpr(
    """{
    .reg .pred missing;
look:
    ld.relaxed.gpu.global.b32 $0, [$2];
    ld.relaxed.gpu.global.b32 $1, [$3];
    setp.eq.b32 missing, $0, 0xFFFFFFFF;
    @missing bra look;
    setp.eq.b32 missing, $1, 0xFFFFFFFF;
    @missing bra look;
    }"""
)


@gluon.constexpr_function
def columns_in_pairs(warps):
    """A thread has 16 rows of two columns, and 64 rows on the same again; a warp, 16 columns."""
    thread = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [64, 0]]
    lanes = [[16, 0], [32, 0], [0, 2], [0, 4], [0, 8]]
    beside = [[0, 16 << n] for n in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(thread, lanes, beside, [], [128, 16 * warps])


@gluon.constexpr_function
def pairs_as_words(warps):
    """The same, with two columns in a word."""
    thread = [[1, 0], [2, 0], [4, 0], [8, 0], [64, 0]]
    lanes = [[16, 0], [32, 0], [0, 1], [0, 2], [0, 4]]
    beside = [[0, 8 << n] for n in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(thread, lanes, beside, [], [128, 8 * warps])


@gluon.constexpr_function
def tile_in_memory(elements):
    """So many elements are 32 bytes, which a warp reads of each of four rows, 16 apart: they lie on different banks."""
    return gl.SwizzledSharedLayout(elements, 16, 4, [1, 0])


@gluon.constexpr_function
def row_in_memory(chunk):
    """Chunks of 16 columns are 32 bytes, so that a warp's would lie on half of the banks."""
    return gl.SwizzledSharedLayout(8, 4, 2, [1, 0]) if chunk == 16 else gl.SwizzledSharedLayout(8, 1, 1, [1, 0])


@gluon.jit
def quantize_rows(
    first, p_x, p_weight, p_y, p_rstd, p_q, p_scale, x_row, y_row, scale_row, scale_group, end, eps, offset,
    floor, upper, largest, inverse,
    SHIFTED: gl.constexpr, X_HAT: gl.constexpr, NARROW: gl.constexpr, BLOCK: gl.constexpr, BLOCKS: gl.constexpr,
    EVEN: gl.constexpr, ALIGN: gl.constexpr, ROUND: gl.constexpr, BOUNDED: gl.constexpr, FLOORED: gl.constexpr,
    ARITHMETIC: gl.constexpr, POWER_OF_TWO: gl.constexpr,
):  # fmt: skip
    """ROWS rows from `first` on, which are there. BLOCK, BLOCKS and EVEN are those of the tile schedule, which sums a
    row block upon block; a thread has CHUNK columns side by side there too.
    """
    THREADS: gl.constexpr = 32 * gl.num_warps()
    RAGGED: gl.constexpr = -1 if EVEN else BLOCKS - 1  # which block is
    CHUNK: gl.constexpr = min(16, BLOCK // THREADS)
    WIDTH: gl.constexpr = THREADS * CHUNK  # a block is as wide, or some times
    chunks: gl.constexpr = gl.BlockedLayout([1, CHUNK], [32, 1], [gl.num_warps(), 1], [1, 0])
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [256 // CHUNK, CHUNK // 8], [gl.num_warps(), 1], [1, 0])
    o_copied = gl.arange(0, BLOCK // CHUNK, gl.SliceLayout(1, copied))[:, None] * CHUNK
    o_copied += gl.arange(0, CHUNK, gl.SliceLayout(0, copied))[None, :]
    places = ()
    for r in gl.static_range(ROWS):
        p_row = p_x + (first + r).to(gl.int64) * (x_row * ALIGN)
        for i in gl.static_range(BLOCKS):
            place = gl.allocate_shared_memory(p_x.dtype.element_ty, [BLOCK // CHUNK, CHUNK], row_in_memory(CHUNK))
            o_col = i * BLOCK + o_copied
            if i == RAGGED:
                async_copy.async_copy_global_to_shared(place, p_row + o_col, mask=o_col < end)
            else:
                async_copy.async_copy_global_to_shared(place, p_row + o_col)
            places = places + (place,)  # noqa: RUF005
        async_copy.commit_group()
    count = end.to(gl.float32)
    rstds = ()
    for r in gl.static_range(ROWS):
        async_copy.wait_group(ROWS - 1 - r)
        squares = with_square(0.0, summed(places[r * BLOCKS], chunks, BLOCK), NARROW)
        for i in gl.static_range(1, BLOCKS):
            squares = with_square(squares, summed(places[r * BLOCKS + i], chunks, BLOCK), NARROW)
        rstd = rstd_of(gl.sum(row_sum(squares)), count, eps, NARROW)
        gl.store(p_rstd + first + r, rstd)
        rstds = rstds + (rstd,)  # noqa: RUF005
    o_chunk = gl.arange(0, THREADS, gl.SliceLayout(1, chunks))[:, None] * CHUNK
    o_chunk += gl.arange(0, CHUNK, gl.SliceLayout(0, chunks))[None, :]
    GROUPS: gl.constexpr = WIDTH // GROUP
    for i in gl.static_range(BLOCKS * BLOCK // WIDTH):
        o_col = i * WIDTH + o_chunk
        m_col = o_col < end
        weight = 0.0
        if p_weight is not None:
            weight = widened(gl.load(p_weight + o_col, mask=m_col, other=0.0))
        for r in gl.static_range(ROWS):
            row = first + r
            place = places[r * BLOCKS + i * WIDTH // BLOCK]
            h = widened(place.slice(i * THREADS % (BLOCK // CHUNK), THREADS, 0).load(chunks))
            y = scale_and_shift(
                h, rstds[r], weight, 0.0, offset, p_weight is not None, False, SHIFTED, X_HAT, NARROW, False
            )
            o_row = row.to(gl.int64) * (y_row * ALIGN) + o_col
            if p_y is not None:
                gl.store(p_y + o_row, y.to(p_y.dtype.element_ty), mask=m_col, eviction_policy=PASSING)
            grouped = gl.reshape(rounded(y, ROUND), [GROUPS, GROUP // CHUNK, CHUNK])
            amax = gl.reduce(gl.reduce(gl.abs(grouped), 2, above), 1, above)
            scale, factor = steps_from(
                amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, False
            )
            factor = gl.expand_dims(gl.expand_dims(factor, 1), 2)
            q = converted(grouped, factor, largest, p_q.dtype.element_ty, ARITHMETIC == "scale", False)
            q = gl.convert_layout(gl.reshape(q, [THREADS, CHUNK]), chunks, assert_trivial=True)
            group = i * GROUPS + gl.arange(0, GROUPS, scale.type.layout)
            o_scale = scale_place(row.to(gl.int64), group, scale_row, scale_group, False)
            if EVEN:
                gl.store(p_q + o_row, q, eviction_policy=PASSING)
                gl.store(p_scale + o_scale, scale)
            else:
                gl.store(p_q + o_row, q, mask=m_col, eviction_policy=PASSING)
                gl.store(p_scale + o_scale, scale, mask=group * GROUP < end)


@gluon.jit
def summed(place, chunks: gl.constexpr, BLOCK: gl.constexpr):
    """A block of a row as the tile schedule has it when it sums it."""
    return gl.reshape(widened(place.load(chunks)), [1, BLOCK])


@gluon.jit
def tile_of(place, k: gl.constexpr, COLS: gl.constexpr, WIDE: gl.constexpr):
    """The tile of that number, in fp32."""
    pairs: gl.constexpr = columns_in_pairs(gl.num_warps())
    if place.dtype == gl.bfloat16:
        # The compiler would take two instructions to widen the upper half of a word.
        words = place._reinterpret(gl.int32, [TILE, WIDE // 2], tile_in_memory(8))
        word = words.slice(k * (COLS // 2), COLS // 2, 1).load(pairs_as_words(gl.num_warps()))
        left = (word << 16).to(gl.float32, bitcast=True)
        right = (word & -65536).to(gl.float32, bitcast=True)
        return gl.convert_layout(gl.reshape(gl.join(left, right), [TILE, COLS]), pairs)
    else:
        return place.slice(k * COLS, COLS, 1).load(pairs).to(gl.float32)


@gluon.jit
def quantize_columns(
    block, first, p_x, p_weight, p_rstd, p_columns, p_column_scale, x_row, column_row, column_scale_row,
    column_scale_group, offset, floor, upper, largest, inverse,
    SHIFTED: gl.constexpr, X_HAT: gl.constexpr, NARROW: gl.constexpr, ALIGN: gl.constexpr, ROUND: gl.constexpr,
    BOUNDED: gl.constexpr, FLOORED: gl.constexpr, ARITHMETIC: gl.constexpr, POWER_OF_TWO: gl.constexpr,
):  # fmt: skip
    """Tiles of 128 rows from `block` · 128 on, beside each other from column `first` on."""
    WARPS: gl.constexpr = gl.num_warps()
    COLS: gl.constexpr = COLUMNS * WARPS
    WIDE: gl.constexpr = COLS * BESIDE
    pairs: gl.constexpr = columns_in_pairs(WARPS)
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [256 // WIDE, WIDE // 8], [WARPS, 1], [1, 0])
    place = gl.allocate_shared_memory(p_x.dtype.element_ty, [TILE, WIDE], tile_in_memory(16))
    # Within a tile 32 bits are enough (fp8/forward.py sees to it), and 64 would be 13 instructions for each copy.
    p_tile = p_x + (block * TILE).to(gl.int64) * (x_row * ALIGN) + first
    o_x = gl.arange(0, TILE, gl.SliceLayout(1, copied))[:, None] * (x_row.to(gl.int32) * ALIGN)
    o_x += gl.arange(0, WIDE, gl.SliceLayout(0, copied))[None, :]
    async_copy.async_copy_global_to_shared(place, p_tile + o_x)
    async_copy.commit_group()
    weights = ()
    for k in gl.static_range(BESIDE if p_weight is not None else 0):
        o_col = first + k * COLS + gl.arange(0, COLS, gl.SliceLayout(0, pairs))
        weights = weights + (gl.load(p_weight + o_col),)  # noqa: RUF005
    # Each thread waits for the statistics of some rows, and then for the others.
    EACH: gl.constexpr = TILE // (32 * WARPS)
    awaited: gl.constexpr = gl.BlockedLayout([EACH], [32], [WARPS], [0])
    p_awaited = p_rstd + block * TILE + gl.arange(0, TILE, awaited)
    if EACH == 2:
        rstds = gl.inline_asm_elementwise(WAIT_FOR_TWO, "=&r,=&r,l,l", [p_awaited], gl.int32, is_pure=False, pack=2)
    else:
        rstds = gl.inline_asm_elementwise(WAIT_FOR_ONE, "=r,l", [p_awaited], gl.int32, is_pure=False, pack=1)
    statistics = gl.allocate_shared_memory(gl.float32, [TILE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    statistics.store(rstds.to(gl.float32, bitcast=True))
    async_copy.wait_group(0)
    gl.thread_barrier()
    row = block * TILE + gl.arange(0, TILE, gl.SliceLayout(1, pairs))
    for k in gl.static_range(BESIDE):
        if k > 0:
            gl.thread_barrier()  # behind which the compiler keeps the next tile's loads, and its registers
        o_col = first + k * COLS + gl.arange(0, COLS, gl.SliceLayout(0, pairs))
        rstd = statistics.load(gl.SliceLayout(1, pairs))[:, None]
        weight = 0.0
        if p_weight is not None:
            weight = weights[k].to(gl.float32)[None, :]
        h = tile_of(place, k, COLS, WIDE)
        y = scale_and_shift(h, rstd, weight, 0.0, offset, p_weight is not None, False, SHIFTED, X_HAT, NARROW, False)
        amax = rounded(gl.reduce(gl.abs(y), 0, above), ROUND)
        values = packed(y, ROUND)
        scale, factor = steps_from(
            amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, False
        )
        o_scale = scale_place(o_col.to(gl.int64), block, column_scale_row, column_scale_group, False)
        gl.store(p_column_scale + o_scale, scale)
        q = scaled(widened(values), factor[None, :], ARITHMETIC == "scale", False).to(p_columns.dtype.element_ty)
        o_byte = o_col.to(gl.int64)[None, :] * (column_row * 16) + row[:, None]
        gl.store(p_columns + o_byte, q, eviction_policy=PASSING)


@gluon.jit
def staged_forward(
    p_x,
    p_weight,
    p_y,
    p_rstd,
    p_q,
    p_scale,
    p_columns,
    p_column_scale,
    x_row,
    y_row,
    scale_row,
    scale_group,
    rows,
    cols,
    eps,
    offset,
    floor,
    upper,
    largest,
    inverse,
    column_row,
    column_scale_row,
    column_scale_group,
    ahead,
    SHIFTED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    TILES: tl.constexpr,
    ALIGN: tl.constexpr,
    ROUND: tl.constexpr,
    BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
):
    """Programs are numbered as in columnwise.py. `rows` is a multiple of 128, and programs for columns fill them."""
    PARTS: gl.constexpr = TILE // ROWS
    turn = gl.program_id(0) - ahead * PARTS
    block = turn // (PARTS + TILES)
    within = turn % (PARTS + TILES)
    part = gl.where(turn < 0, gl.program_id(0), (block + ahead) * PARTS + within)
    tile = gl.where(turn < 0, -1, within - PARTS)
    if tile < 0:
        if part * ROWS < rows:
            quantize_rows(
                part * ROWS, p_x, p_weight, p_y, p_rstd, p_q, p_scale, x_row, y_row, scale_row, scale_group,
                cols * ALIGN, eps, offset, floor, upper, largest, inverse, SHIFTED, X_HAT, NARROW, BLOCK, BLOCKS,
                EVEN, ALIGN, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO,
            )  # fmt: skip
    else:
        quantize_columns(
            block, tile * (COLUMNS * gl.num_warps() * BESIDE), p_x, p_weight, p_rstd, p_columns, p_column_scale,
            x_row, column_row, column_scale_row, column_scale_group, offset, floor, upper, largest, inverse, SHIFTED,
            X_HAT, NARROW, ALIGN, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO,
        )  # fmt: skip
