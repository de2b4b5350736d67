"""Few rows, each shared by the programs of a thread block cluster, which tell each other sums through shared memory.

Triton knows nothing of it: a kernel is compiled as ever, the launch groups its programs into clusters (launcher.c), and
what they exchange is written here in the machine's own terms. Programs of a cluster run at the same time, by the
hardware's promise, and need no memory to meet in.

A row's bits are those that one program alone would give it. Columns go to the programs in turn, as many at a time as a
warp loads at once (UNIT), so that their warps together are that program's; and a sum over warps pairs the ones that are
farthest apart first, so that the programs, whose warps are neighbours, are what is left to pair.
"""

import triton
import triton.language as tl

# On one line each, because PyTorch reads the compiler's text line by line.
ARRIVE = tl.constexpr("barrier.cluster.arrive.relaxed.aligned; mov.b32 $0, $1;")
#: Nobody writes to a program that has not begun, so all have arrived before the first exchange.
BEGUN = tl.constexpr("barrier.cluster.wait.aligned; mov.b32 $0, $1;")
#: Thread t of each program hands its number to program t; a cluster has eight.
_EXCHANGE = (
    "{ .shared .align 16 .b32 numbers[8]; .reg .pred sends; .reg .b32 thread, own, place; .reg .f32 n<8>; "
    "mov.u32 thread, %tid.x; mov.u32 own, %cluster_ctarank; setp.lt.u32 sends, thread, 8; mov.u32 place, numbers; "
    "mad.lo.u32 place, own, 4, place; @sends mapa.shared::cluster.u32 place, place, thread; "
    "@sends st.shared::cluster.b32 [place], $1; "
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; "
    "ld.shared.v4.f32 {n0, n1, n2, n3}, [numbers]; ld.shared.v4.f32 {n4, n5, n6, n7}, [numbers+16]; "
    "OP n0, n0, n4; OP n2, n2, n6; OP n1, n1, n5; OP n3, n3, n7; OP n0, n0, n2; OP n1, n1, n3; OP $0, n0, n1; }"
)
SUM = tl.constexpr(_EXCHANGE.replace("OP", "add.f32"))
MAXIMUM = tl.constexpr(_EXCHANGE.replace("OP", "max.NaN.f32"))


@triton.jit
def arrive(index):
    """At a program's beginning: its number, once it has told the others that it is there."""
    return tl.inline_asm_elementwise(ARRIVE, "=r,r", [index], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def columns_of(own, BLOCK: tl.constexpr, UNIT: tl.constexpr, SLICES: tl.constexpr):
    """Which of the row's first BLOCK · SLICES columns a program has, as a row; what follows has the same pattern."""
    column = tl.arange(0, BLOCK)[None, :]
    if SLICES > 1:
        column = column // UNIT * (SLICES * UNIT) + own * UNIT + column % UNIT
    return column


@triton.jit
def sum_of_slices(value, SLICES: tl.constexpr, FIRST: tl.constexpr):
    """`value`, a block of one element, added up over the programs that share the row; FIRST: that they exchange."""
    if SLICES > 1:
        value = sum_of_cluster(tl.sum(value), FIRST)
    return value


@triton.jit
def sum_of_cluster(number, FIRST: tl.constexpr):
    """A number of each program, added up."""
    return _exchanged(number, SUM, FIRST)


@triton.jit
def maximum_of_slices(value, SLICES: tl.constexpr, FIRST: tl.constexpr):
    """The same for maxima, which are not negative; NaN if one is."""
    if SLICES > 1:
        value = _exchanged(tl.sum(value), MAXIMUM, FIRST)
    return value


@triton.jit
def _exchanged(number, HOW: tl.constexpr, FIRST: tl.constexpr):
    # A number, not a block: of these a thread would have as many copies as it has columns, and exchange each.
    if FIRST:
        number = tl.inline_asm_elementwise(BEGUN, "=f,f", [number], dtype=tl.float32, is_pure=False, pack=1)
    return tl.inline_asm_elementwise(HOW, "=f,r", [number], dtype=tl.float32, is_pure=False, pack=1)
