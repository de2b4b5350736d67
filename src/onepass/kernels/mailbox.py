"""The mailbox: how programs that share a row tell each other their partial sums, through global memory.

A word of the mailbox is its own flag: the mailbox starts as zero bits, and a sum of +0.0 is published as -0.0, which
adds up the same. So NaN and inf travel like any other value, and nobody waits for a word that is already there. Where
two sums are exchanged they share one 64-bit word, so that there is one wait.
"""

import triton
import triton.language as tl
from triton.runtime.jit import constexpr_function

from onepass.kernels.parts import INTERPRETED
from onepass.kernels.sums import sum_by_warps

# Each thread waits for its own word. In a loop of Triton's a block of words would be read until all are there, and the
# compiler takes threads that hold the same element to have read the same, though one may have looked too early; and it
# does not pipeline the loads of a row loop that has another loop within it.
_WAIT = """{
    .reg .pred missing;
look:
    ld.relaxed.gpu.global.TYPE $0, [$1];
    setp.eq.TYPE missing, $0, MISSING;
    @missing bra look;
    }"""
WAIT_32 = tl.constexpr(_WAIT.replace("TYPE", "b32").replace("MISSING", "0"))
WAIT_64 = tl.constexpr(_WAIT.replace("TYPE", "b64").replace("MISSING", "0"))
#: The same in two parts, with other work in between: a first look, whose answer takes its time, and a wait that begins
#: with what it saw.
_FIRST = "ld.relaxed.gpu.global.TYPE $0, [$1];"
FIRST_32, FIRST_64 = tl.constexpr(_FIRST.replace("TYPE", "b32")), tl.constexpr(_FIRST.replace("TYPE", "b64"))
_SECOND = """{
    .reg .pred missing;
    mov.TYPE $0, $2;
look:
    setp.eq.TYPE missing, $0, 0;
    @missing ld.relaxed.gpu.global.TYPE $0, [$1];
    @missing bra look;
    }"""
SECOND_32, SECOND_64 = tl.constexpr(_SECOND.replace("TYPE", "b32")), tl.constexpr(_SECOND.replace("TYPE", "b64"))
#: So many looks more than the first, and then it is zero still.
_LOOK = """{
    .reg .pred there, over;
    .reg .s32 left;
    mov.s32 left, $2;
look:
    ld.relaxed.gpu.global.TYPE $0, [$1];
    setp.ne.TYPE there, $0, 0;
    sub.s32 left, left, 1;
    setp.lt.or.s32 over, left, 0, there;
    @!over bra look;
    }"""
LOOK_32 = tl.constexpr(_LOOK.replace("TYPE", "b32"))
LOOK_64 = tl.constexpr(_LOOK.replace("TYPE", "b64"))
#: Where zero is a value like any other.
WAIT_WHILE_ONES = tl.constexpr(_WAIT.replace("TYPE", "b32").replace("MISSING", "0xFFFFFFFF"))
#: For what another program left in memory before it counted. One thread looks, since each look makes the SM forget what
#: it has in its L1; the others wait for it at a barrier.
WAIT_FOR_COUNT = tl.constexpr(
    """{
    .reg .pred other, early;
    .reg .u32 thread;
    mov.u32 thread, %tid.x;
    setp.ne.u32 other, thread, 0;
    mov.b32 $0, 0;
    @other bra there;
look:
    ld.acquire.gpu.global.b32 $0, [$1];
    setp.lt.s32 early, $0, $2;
    @early bra look;
there:
    }"""
)


@constexpr_function
def wait_for_words(words, wide):
    """All are asked for at once, and those that are not there yet again, while a thread of the warp misses one.

    Else threads would come out of the wait one by one, and the warp's sums be made for each of them alone.
    """
    kind, numbers = "b64" if wide else "b32", range(words)
    ask = [f"ld.relaxed.gpu.global.{kind} ${n}, [${words + n}];" for n in numbers]
    look = [f"setp.eq.{kind} missing{n}, ${n}, 0; or.pred any, any, missing{n};" for n in numbers]
    return (
        f"{{ .reg .pred any; {' '.join(f'.reg .pred missing{n};' for n in numbers)} {' '.join(ask)} again: "
        f"setp.ne.s32 any, 0, 0; {' '.join(look)} vote.sync.any.pred any, any, 0xffffffff; "
        f"{' '.join(f'@missing{n} {ask[n]}' for n in numbers)} @any bra again; }}"
    )


@constexpr_function
def operands(words, wide):
    return ",".join(["=&l" if wide else "=&r"] * words + ["l"] * words)


@triton.jit
def bits_of(value):
    """The bits of a value, with -0.0 for +0.0."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits == 0, -2147483648, bits)


@triton.jit
def bits_of_pair(low, high):
    return (bits_of(high).to(tl.int64) << 32) | (bits_of(low).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def publish(p_word, value, wanted):
    """The value of a one-element block."""
    tl.atomic_xchg(p_word, bits_of(tl.sum(value)), mask=wanted, sem="relaxed")


@triton.jit
def publish_pair(p_word, low, high, wanted):
    tl.atomic_xchg(p_word, bits_of_pair(tl.sum(low), tl.sum(high)), mask=wanted, sem="relaxed")


@triton.jit
def pair_of(words):
    return words.to(tl.int32).to(tl.float32, bitcast=True), (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def moments_of(words, peer, end, count, WIDTH: tl.constexpr, CENTRED: tl.constexpr, WARPS: tl.constexpr = 1):
    """A row's mean, and its sum of squares about it, from the words of its slices, of WIDTH columns each.

    WARPS: which have a word in each thread; 1: in any other way.

    RMSNorm has no mean. LayerNorm's slices have one each, and squares about that.
    """
    mean = 0.0
    if CENTRED:
        moments, means = pair_of(words)
        widths = tl.maximum(tl.minimum(end - peer * WIDTH, WIDTH), 0).to(tl.float32)
        # Products are rounded before they are added to another lane's: else two lanes, each with its own product as it
        # is and the other's rounded, would not agree on the sum.
        mean = tl.div_rn(sum_by_warps(tl.fma(means, widths, 0.0), WARPS), count)
        square = sum_by_warps(tl.fma((means - mean) * (means - mean), widths, moments), WARPS)
    else:
        square = sum_by_warps(words.to(tl.float32, bitcast=True), WARPS)
    return mean, square


@triton.jit
def wait_for(p_words):
    WIDE: tl.constexpr = p_words.dtype.element_ty == tl.int64
    if INTERPRETED:
        words = tl.load(p_words, volatile=True)
        while tl.min((words != 0).to(tl.int32), axis=0) == 0:
            words = tl.load(p_words, volatile=True)
        return words
    elif WIDE:
        return tl.inline_asm_elementwise(WAIT_64, "=l,l", [p_words], dtype=tl.int64, is_pure=False, pack=1)
    else:
        return tl.inline_asm_elementwise(WAIT_32, "=r,l", [p_words], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_for_all(p_words, WORDS: tl.constexpr):
    """The same of so many in each thread, for whole warps."""
    WIDE: tl.constexpr = p_words.dtype.element_ty == tl.int64
    how: tl.constexpr = wait_for_words(WORDS, WIDE)
    which: tl.constexpr = operands(WORDS, WIDE)
    return tl.inline_asm_elementwise(how, which, [p_words], p_words.dtype.element_ty, False, WORDS)


@triton.jit
def first_look(p_words):
    """The words as they are by now, for `wait_since`."""
    if INTERPRETED:
        return tl.load(p_words, volatile=True)
    elif p_words.dtype.element_ty == tl.int64:
        return tl.inline_asm_elementwise(FIRST_64, "=l,l", [p_words], dtype=tl.int64, is_pure=False, pack=1)
    else:
        return tl.inline_asm_elementwise(FIRST_32, "=r,l", [p_words], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_since(seen, p_words):
    """The words, of which some were there at the first look."""
    if INTERPRETED:
        return wait_for(p_words)
    elif p_words.dtype.element_ty == tl.int64:
        return tl.inline_asm_elementwise(SECOND_64, "=&l,l,l", [p_words, seen], dtype=tl.int64, is_pure=False, pack=1)
    else:
        return tl.inline_asm_elementwise(SECOND_32, "=&r,l,r", [p_words, seen], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def look_for(p_words, patience):
    """The words, or zero for what is not there after so many looks more than the first.

    Each thread looks for its own, and threads that hold the same element may not see the same.
    """
    if INTERPRETED:
        words = tl.load(p_words, volatile=True)
        looks = 0
        while tl.min((words != 0).to(tl.int32), axis=0) == 0 and looks < patience:
            words = tl.load(p_words, volatile=True)
            looks += 1
        return words
    WIDE: tl.constexpr = p_words.dtype.element_ty == tl.int64
    looks = tl.zeros(p_words.shape, tl.int32) + patience
    if WIDE:
        return tl.inline_asm_elementwise(LOOK_64, "=l,l,r", [p_words, looks], dtype=tl.int64, is_pure=False, pack=1)
    else:
        return tl.inline_asm_elementwise(LOOK_32, "=r,l,r", [p_words, looks], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def words_of(p_mailbox, row, slices, PEERS: tl.constexpr):
    """Where a row's slices publish their sums, in their order; beyond them the place of the last one."""
    return p_mailbox + row.to(tl.int64) * slices + tl.minimum(tl.arange(0, PEERS), slices - 1)


@triton.jit
def seen_early(p_words, PEERS: tl.constexpr):
    """The words of a row while this program makes its sum of the next one, for `collect_means`.

    Where a thread has two of them, whose waits would come one behind the other: 467 us against 475 for LayerNorm of
    4,096 x 65,536. One is asked for in its time: 227 against 230 at 8,192 x 16,384.
    """
    if PEERS > 32:
        return first_look(p_words)
    else:
        return 0


@triton.jit
def means_of(words, count, CENTRED: tl.constexpr):
    """Of w·dy·x̂, and for LayerNorm of w·dy, over a whole row."""
    if CENTRED:
        dots, sums = pair_of(words)
        return tl.div_rn(tl.sum(dots, axis=0), count), tl.div_rn(tl.sum(sums, axis=0), count)
    else:
        return tl.div_rn(tl.sum(words.to(tl.float32, bitcast=True), axis=0), count), 0.0


@triton.jit
def collect_means(p_words, seen, slices, count, CENTRED: tl.constexpr, PEERS: tl.constexpr):
    """The same, once all slices of the row have published their sums."""
    if PEERS > 32:
        words = wait_since(seen, p_words)
    else:
        words = wait_for(p_words)
    return means_of(tl.where(tl.arange(0, PEERS) < slices, words, 0), count, CENTRED)
