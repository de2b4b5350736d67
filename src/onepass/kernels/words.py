"""Rows in shared memory that a thread reads and writes alone, in words: a column of fp32 each, or two of 16 bits.

Gluon names a place in shared memory for all threads at once. Here each has its own, so that what is read and written is
in the machine's own terms. It holds while the program has one allocation of shared memory and nothing else there: no
sum across threads, nor anything that is laid out anew.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

#: Where in shared memory so many bytes lie.
PLACE = gl.constexpr("{ .reg .u32 begin; mov.u32 begin, global_smem; add.u32 $0, begin, $1; }")
#: What two words that lie side by side have from the middle of the first on, or from its beginning.
FROM = gl.constexpr("{ .reg .b32 how; mad.lo.s32 how, $3, 0x2222, 0x3210; prmt.b32 $0, $1, $2, how; }")
#: What a word has from its middle on of what comes before, or nothing of it, and then of what follows.
ONTO = gl.constexpr("{ .reg .b32 how; mad.lo.s32 how, $3, -0x219a, 0x3210; prmt.b32 $0, $1, $2, how; }")


@constexpr_function
def load_word(number):
    return f"ld.shared.b32 $0, [$1+{4 * number}];"


@constexpr_function
def store_word(number):
    return f"st.shared.b32 [$1+{4 * number}], $2; mov.b32 $0, $3;"


@constexpr_function
def store_part(number, if_between, else_):
    """Of a word "all", its "low" or its "high" half, or "none" of it, where a row begins between words and else."""
    stores = []
    for guard, part in (("@between", if_between), ("@!between", else_)):
        if part == "all":
            stores.append(f"{guard} st.shared.b32 [$1+{4 * number}], $2;")
        elif part != "none":
            stores.append(f"{guard} st.shared.b16 [$1+{4 * number + (2 if part == 'high' else 0)}], {part};")
    both = " ".join(stores)
    return (
        "{ .reg .pred between; .reg .b16 low, high; mov.b32 {low, high}, $2; "
        f"setp.ne.s32 between, $3, 0; {both} mov.b32 $0, $3; }}"
    )


@constexpr_function
def widen(dtype, upper):
    """The value in one half of a word, or in all of it."""
    if dtype == gl.float32:
        return "mov.b32 $0, $1;"
    if dtype == gl.bfloat16:
        return "and.b32 $0, $1, 0xFFFF0000;" if upper else "shl.b32 $0, $1, 16;"
    return f"{{ .reg .b16 low, high; mov.b32 {{low, high}}, $1; cvt.f32.f16 $0, {'high' if upper else 'low'}; }}"


@constexpr_function
def pack(dtype):
    """Two values, rounded, as a word."""
    return f"cvt.rn.{'bf16x2' if dtype == gl.bfloat16 else 'f16x2'}.f32 $0, $2, $1;"


@constexpr_function
def from_lane(index):
    return f"shfl.sync.idx.b32 $0, $1, {index}, 31, 0xffffffff;"


@constexpr_function
def from_other(distance):
    return f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"


@gluon.jit
def place_of(element, dtype: gl.constexpr):
    """The word in which an element lies, and whether that is in its upper half."""
    if dtype == gl.float32:
        return gl.inline_asm_elementwise(PLACE, "=r,r", [element * 4], gl.int32, True, 1), element
    else:
        word = gl.inline_asm_elementwise(PLACE, "=r,r", [(element & -2) * 2], gl.int32, True, 1)
        return word, element & 1


@gluon.jit
def words_at(place, upper, COLS: gl.constexpr, WHOLE: gl.constexpr, dtype: gl.constexpr):
    """A row's words. WHOLE: each row begins with one."""
    COUNT: gl.constexpr = COLS if dtype == gl.float32 else (COLS + 1) // 2
    found = ()
    for k in gl.static_range(COUNT if WHOLE else COUNT + 1):
        found = found + (gl.inline_asm_elementwise(load_word(k), "=r,r", [place], gl.int32, False, 1),)  # noqa: RUF005
    words = ()
    for k in gl.static_range(COUNT):
        word = found[k]
        if not WHOLE:
            word = gl.inline_asm_elementwise(FROM, "=r,r,r,r", [word, found[k + 1], upper], gl.int32, False, 1)
        words = words + (word,)  # noqa: RUF005 (Triton has no unpacking)
    return words


@gluon.jit
def value_in(words, column: gl.constexpr, dtype: gl.constexpr):
    """Of a column, in fp32."""
    EACH: gl.constexpr = 1 if dtype == gl.float32 else 2
    HOW: gl.constexpr = widen(dtype, column % 2 == 1)
    return gl.inline_asm_elementwise(HOW, "=f,r", [words[column // EACH]], gl.float32, False, 1)


@gluon.jit
def give_word(place, word, upper, HOW: gl.constexpr):
    gl.inline_asm_elementwise(HOW, "=r,r,r,r", [place, word, upper], gl.int32, False, 1)


@gluon.jit
def give_pair(
    place, upper, before, low, high, k: gl.constexpr, COLS: gl.constexpr, WHOLE: gl.constexpr, dtype: gl.constexpr
):
    """Two columns of a row, rounded, to where it lies; of words that it shares with other rows, its half.

    `before`: the pair before them, as this gave it back.
    """
    ODD: gl.constexpr = COLS % 2 == 1
    LAST: gl.constexpr = (COLS + 1) // 2 - 1
    if dtype == gl.float32:
        give_word(place, low.to(gl.int32, bitcast=True), upper, store_word(2 * k))
        if 2 * k + 1 < COLS:
            give_word(place, high.to(gl.int32, bitcast=True), upper, store_word(2 * k + 1))
        return before
    else:
        pair = gl.inline_asm_elementwise(pack(dtype), "=r,f,f", [low, high], gl.int32, True, 1)
        if WHOLE:
            give_word(place, pair, upper, store_word(k))
        else:
            if k == 0:
                before = pair
            word = gl.inline_asm_elementwise(ONTO, "=r,r,r,r", [pair, before, upper], gl.int32, False, 1)
            if k == 0:
                give_word(place, word, upper, store_part(0, "high", "all"))
            elif k == LAST and ODD:
                give_word(place, word, upper, store_part(k, "all", "low"))
            else:
                give_word(place, word, upper, store_word(k))
            if k == LAST and not ODD:
                word = gl.inline_asm_elementwise(ONTO, "=r,r,r,r", [pair, pair, upper], gl.int32, False, 1)
                give_word(place, word, upper, store_part(k + 1, "low", "none"))
        return pair


@gluon.jit
def row_of_thread(thread, COLS: gl.constexpr, dtype: gl.constexpr):
    """Of an odd number of columns of 16 bits a warp has every other row. They lie an odd number of words apart, as rows
    of fp32 do, and so never on one bank.
    """
    if COLS % 2 == 1 and gl.num_warps() > 1 and dtype != gl.float32:
        return thread // 64 * 64 + thread % 32 * 2 + thread // 32 % 2
    else:
        return thread


@gluon.jit
def by_lane(p, thread, COLS: gl.constexpr):
    """Weight or bias, a column a lane."""
    numbers = ()
    for i in gl.static_range((COLS + 31) // 32):
        o_col = i * 32 + thread % 32
        numbers = numbers + (gl.load(p + o_col, mask=o_col < COLS, other=0.0),)  # noqa: RUF005
    return numbers


@gluon.jit
def of_column(numbers, column: gl.constexpr):
    """A column's number, where lanes have those of 32 columns each."""
    return gl.inline_asm_elementwise(from_lane(column % 32), "=f,f", [numbers[column // 32]], gl.float32, False, 1)


@gluon.jit
def sum_of_warp(number):
    for level in gl.static_range(5):
        number += gl.inline_asm_elementwise(from_other(16 >> level), "=f,f", [number], gl.float32, False, 1)
    return number


@gluon.jit
def store_sums(p, sums, thread, COLS: gl.constexpr):
    """One partial row a warp, of the sums that its threads have of each column."""
    lane = thread % 32
    partial = gl.program_id(0) * gl.num_warps() + thread // 32
    for i in gl.static_range((COLS + 31) // 32):
        total = gl.zeros_like(sums[0])
        for k in gl.static_range(min(32, COLS - 32 * i)):
            total = gl.where(lane == k, sum_of_warp(sums[32 * i + k]), total)
        o_col = 32 * i + lane
        gl.store(p + partial.to(gl.int64) * COLS + o_col, total, mask=o_col < COLS)
