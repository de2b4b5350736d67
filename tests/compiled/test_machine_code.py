"""What Triton's compiler makes of the kernels for an H200. It needs no GPU: the compiler and its tools are enough.

Two promises rest on it: a row is laid over the same threads whatever the number of rows, and no plan spills registers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from onepass.backward import Backward, Needs
from onepass.forward import Forward
from onepass.fp8.forward import QuantizedForward
from onepass.fp8.spec import Fp8
from onepass.lab.machine_code import instructions, loads_that_wait, moved, registers_and_stack
from onepass.plan import compiler
from onepass.plan.plans import slot_of, slots_of
from onepass.spec import Norm, Problem

BF16, F32 = torch.bfloat16, torch.float32
RMS, LAYER = Norm(False, 1e-6), Norm(True, 1e-6)

both = pytest.mark.parametrize("norm", [RMS, LAYER], ids=["rms_norm", "layer_norm"])


def problem_of(norm: Norm, rows: int, cols: int, dtype: torch.dtype, residual: bool = False) -> Problem:
    sums = dtype if residual else None
    return Problem(rows, 1, cols, dtype, dtype, dtype, dtype if norm.centred else None, sums, sums)


def forward_of(norm: Norm, rows: int, cols: int, dtype: torch.dtype, residual: bool = False) -> Forward:
    x = torch.empty(rows, cols, dtype=dtype, device="meta")
    return Forward(norm, problem_of(norm, rows, cols, dtype, residual), x, x if residual else None)


def kernel_of(call: Forward) -> Any:
    return call.step(call.plan(), call.align(True), True).compiled(call.place.device)


def compile_forward(norm: Norm, rows: int, cols: int, dtype: torch.dtype) -> Any:
    return kernel_of(forward_of(norm, rows, cols, dtype))


def compile_backward(norm: Norm, rows: int, cols: int, dtype: torch.dtype) -> None:
    dense, needs = (cols, 1), Needs(True, False, True, norm.centred)
    problem = problem_of(norm, rows, cols, dtype)
    call = Backward(norm, problem, (rows, cols), torch.device("meta"), (dense, None, dense), needs)
    for step in call.steps(call.plan(), call.align(True))[0]:
        step.compiled(call.place.device)


def row_layouts(kernel: Any) -> set[tuple[int, ...]]:
    """How a row lies that is summed: elements of a thread side by side, threads of a warp, warps."""
    text = kernel.asm["ttgir"]
    fields = (rf"{name} = \[(.*?)\]" for name in ("sizePerThread", "threadsPerWarp", "warpsPerCTA"))
    fields = r"#blocked(\d*) = #ttg.blocked<\{" + ", ".join(fields)
    layouts = {name: [list(map(int, each.split(", "))) for each in found] for name, *found in re.findall(fields, text)}
    # Of a row whose moments are found in one walk it is vectors that are summed, which lie one below the other.
    vector = r"tensor<\d+xf32, #ttg.slice<\{dim = 1, parent = #blocked(\d*)\}>>"
    vectors = re.findall(rf"\}}\) : \({vector}\)|tt.reshape %\w+ : {vector} -> tensor<\d+x\d+x", text)
    if vectors:
        return {(side[1], lanes[0], warps[0]) for side, lanes, warps in (layouts[a or b] for a, b in vectors)}
    # Where a row is summed over each warp first, it is cut into the columns of each.
    cut = re.findall(r"\}\) : \(tensor<\d+x\d+x\d+x\d+xf32, #blocked(\d*)>\)", text)
    if cut:
        return {(side[3], lanes[3], warps[2]) for side, lanes, warps in (layouts[name] for name in cut)}
    reduced = re.findall(r'"tt.reduce"(.*?)\}\) : \(tensor<\d+x\d+xf32, #blocked(\d*)>\)', text, re.DOTALL)
    summed = {layout for region, layout in reduced if "arith.addf" in region}
    assert summed, "no sum of a row was found: the compiler's text has changed"
    return {(side[1], lanes[1], warps[1]) for side, lanes, warps in (layouts[name] for name in summed)}


def stack_bytes(kernel: Any) -> int:
    return registers_and_stack(kernel)[1]


@both
@pytest.mark.parametrize("cols", [2560, 4096, 5120, 8192])
def test_many_rows_ask_for_everything_before_they_wait(compiled, cols, norm):
    """Which the compiler would undo (decision 0014), and does where it is left to it. Few rows that are not divided by
    their width do so too, and RMSNorm's on their own (decision 0019).
    """
    lone, few, many = (loads_that_wait(compile_forward(norm, rows, cols, BF16)) for rows in (1, 8, 8192))
    assert lone[0] == few[0] == many[0] and many[1] == 0
    undivided = cols & (cols - 1) == 0
    assert (few[1] == 0) == undivided
    assert (lone[1] == 0) == (undivided or (norm is RMS and cols < 6657))


@both
@pytest.mark.parametrize(("rows", "cols"), [(440, 128), (300, 216), (3000, 768)])
def test_few_short_rows_are_not_moved_to_meet_their_weight(compiled, rows, cols, norm):
    assert not moved(compile_forward(norm, rows, cols, BF16))


@pytest.mark.parametrize("cols", [128, 384])
def test_gradients_are_not_moved_to_meet_the_weight(compiled, cols):
    compile_backward(RMS, 30_000, cols, BF16)
    assert not moved(compiled[0])


@pytest.mark.parametrize("cols", [333, 4096])
def test_all_partials_of_a_thread_are_asked_for_before_any_is_added(compiled, cols):
    compile_backward(RMS, 30_000, cols, BF16)
    kernel = compiled[-1]
    assert kernel.name == "sum_partials"
    loads, waiting = loads_that_wait(kernel)
    assert loads >= 16 and waiting == 0


@both
@pytest.mark.parametrize(
    ("cols", "dtype"),
    [
        *((cols, BF16) for cols in (32, 100, 127, 128, 200, 384, 520, 1000, 1100, 1536, 83712)),
        *((cols, F32) for cols in (32, 100, 127, 200, 520, 1100)),
    ],
)
def test_a_row_is_laid_over_the_same_threads_whatever_the_number_of_rows(compiled, cols, dtype, norm):
    one, many = (forward_of(norm, rows, cols, dtype, False) for rows in (1, 4096))
    chains = many.plan().chains  # of which few rows have a warp each
    assert row_layouts(kernel_of(one)) == {
        (side, lanes, chains * warps) for side, lanes, warps in row_layouts(kernel_of(many))
    }


@both
@pytest.mark.parametrize(
    ("cols", "dtype", "residual"),
    [
        (20480, BF16, False),
        (54976, BF16, False),
        (65536, BF16, False),
        (12288, BF16, True),
        (20480, BF16, True),
        (16384, F32, False),
        (32768, F32, False),
    ],
)
def test_a_row_that_programs_share_lies_over_the_threads_of_one(compiled, cols, dtype, residual, norm):
    """So a row's bits are the same: each program has the columns of every so many warps (kernels/cluster.py)."""
    many, few = (forward_of(norm, rows, cols, dtype, residual) for rows in (1000, 1))
    assert few.plan().schedule == "tile" and few.plan().slices == 8
    [(side_by_side, lanes, warps)] = row_layouts(kernel_of(many))
    assert row_layouts(kernel_of(few)) == {(side_by_side, lanes, warps // 8)}
    assert few.plan().unit == lanes * side_by_side


def test_a_wider_bias_does_not_change_how_a_shared_row_lies(compiled):
    """It is the one tensor of another width that a row which is shared may have."""
    calls = []
    for rows in (1, 1000):
        problem = replace(problem_of(LAYER, rows, 54976, BF16), bias=F32)
        calls.append(Forward(LAYER, problem, torch.empty(rows, 54976, dtype=BF16, device="meta"), None))
    few, many = calls
    [(side_by_side, lanes, warps)] = row_layouts(kernel_of(many))
    assert few.plan().slices == 8 and row_layouts(kernel_of(few)) == {(side_by_side, lanes, warps // 8)}


@both
@pytest.mark.parametrize("cols", [1000, 5120, 16384, 27048])
@pytest.mark.parametrize("rows", [1, 5000])
def test_squares_are_added_up_by_operations_that_round_once(compiled, rows, cols, norm):
    """The sum of two products may round either of them first, and the compiler's choice may depend on the kernel."""
    text = compile_forward(norm, rows, cols, BF16).asm["ptx"]
    assert re.search(r"fma\.rn\.f32 \s*%\w+, (%\w+), \1, ", text), "squares were not found"
    assert not re.search(r"mul\.f32 \s*%\w+, (%\w+), \1;", text)


@pytest.mark.parametrize(("cols", "access"), [(1024, "v4.b32"), (1000, "v4.b32"), (196, "v2.b32"), (510, "b32")])
def test_loads_and_stores_are_as_wide_as_rows_are_aligned(compiled, cols, access):
    """And no wider: a tensor may begin at any of its rows. Few rows do not say what the L2 is to keep."""
    many, few = (compile_forward(RMS, rows, cols, BF16).asm["ptx"] for rows in (80_000, 64))
    for kind in ("ld", "st"):
        assert set(re.findall(rf"{kind}\.global\.L1::evict_\w+\.L2::cache_hint\.([\w.]+)", many)) == {access}
    assert "cache_hint" not in few and "createpolicy" not in few


@both
@pytest.mark.parametrize("cols", [128, 1024, 2880, 4096, 5120, 8192, 12288, 16384, 65536, 83712, 131072])
def test_no_plan_for_16_bits_spills(compiled, cols, norm):
    compile_forward(norm, 8192, cols, BF16)
    dense = (cols, 1)
    needs = Needs(True, False, True, norm.centred)
    problem = problem_of(norm, 8192, cols, BF16)
    call = Backward(norm, problem, (8192, cols), torch.device("meta"), (dense, None, dense), needs)
    for rows in (1, 8192):
        for step in call.steps(call.plan(rows=rows), call.align(True))[0]:
            step.compiled(call.place.device)
    spilled = {kernel.name: stack for kernel in compiled if (stack := stack_bytes(kernel))}
    # A few words are known to: LayerNorm's backward holds two sums more where programs share a row.
    known = {"split_backward": 24 * norm.centred}
    assert all(stack <= known.get(name, 0) for name, stack in spilled.items()), spilled


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "residual"),
    [(LAYER, 999, 60_004, False), (RMS, 2500, 26_000, True), (RMS, 100, 32_768, True)],
    ids=str,
)
def test_wide_rows_that_one_program_holds_do_not_spill(compiled, norm, rows, cols, residual):
    kernel_of(forward_of(norm, rows, cols, BF16, residual))
    [kernel] = compiled
    assert not stack_bytes(kernel)


@both
@pytest.mark.parametrize("cols", [387, 2049, 4099])
def test_rows_in_turns_are_loaded_and_stored_in_vectors_and_do_not_spill(compiled, cols, norm):
    dense = (cols, 1)
    needs = Needs(True, False, True, norm.centred)
    problem = problem_of(norm, 8192, cols, BF16)
    call = Backward(norm, problem, (8192, cols), torch.device("meta"), (dense, None, dense), needs)
    step = call.steps(call.plan(), call.align(True))[0][0]
    assert step.plan.schedule == "turns"
    step.compiled(call.place.device)
    [kernel] = compiled
    assert not stack_bytes(kernel)
    copied = set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", kernel.asm["ptx"]))
    assert copied and copied <= {"0x4", "0x8", "0x10"} and copied != {"0x4"}, "4 bytes for rstd and mean"
    assert re.search(r"st\.global\.L1::evict_first\.L2::cache_hint\.v[24]\.b32", kernel.asm["ptx"])


@both
@pytest.mark.parametrize(("rows", "cols", "words"), [(1, 300_000, 1), (16, 118_029, 8), (32, 98_304, 16)])
def test_a_part_of_all_of_few_wide_rows_is_held_and_words_are_asked_for_at_once(compiled, rows, cols, words, norm):
    call = Backward(
        norm, problem_of(norm, rows, cols, BF16), (rows, cols), torch.device("meta"), ((cols, 1), None, (cols, 1)),
        Needs(True, False, True, norm.centred),
    )  # fmt: skip
    [step] = call.steps(call.plan(), call.align(True))[0]
    assert step.plan.schedule == "few_split"
    step.compiled(call.place.device)
    [kernel] = compiled
    assert not stack_bytes(kernel)
    looks = re.findall(r"reg \.pred any; (.*?) again: .*? vote\.sync", kernel.asm["ptx"])
    assert [look.count("ld.relaxed.gpu.global") for look in looks] == [words], "once, and all that a thread has"


@both
@pytest.mark.parametrize("cols", [204, 364, 700, 3068, 3580, 4092, 5604])
def test_rows_that_begin_on_8_bytes_are_held_in_registers(compiled, cols, norm):
    compile_backward(norm, 9000, cols, BF16)
    assert not moved(compiled[0]) and not stack_bytes(compiled[0])


@pytest.mark.parametrize("cols", [256, 768, 4096])
def test_dw_and_db_have_programs_of_their_own_with_half_the_registers(compiled, cols):
    """A thread asks for all its partials at once, and so the fewer they are the more warps are at it."""
    for norm in (RMS, LAYER):
        compile_backward(norm, 30_000, cols, BF16)
    one, two = (kernel for kernel in compiled if kernel.name == "sum_partials")
    assert abs(registers_and_stack(two)[0] - registers_and_stack(one)[0]) <= 8 and not stack_bytes(two)


@both
@pytest.mark.parametrize(("rows", "cols"), [(576_000, 384), (65536, 1024), (16384, 4088)])
def test_rows_lie_as_they_would_with_a_weight_of_more_bits(compiled, rows, cols, norm):
    """Else dx would pass through shared memory in each step of a walk."""
    problem = replace(problem_of(norm, rows, cols, BF16), weight=F32, bias=F32 if norm.centred else None)
    needs = Needs(True, False, True, norm.centred)
    call = Backward(norm, problem, (rows, cols), torch.device("meta"), ((cols, 1), None, (cols, 1)), needs)
    plan = call.plan()
    assert plan.schedule == "tile" and plan.rows > 1
    call.steps(plan, call.align(True))[0][0].compiled(call.place.device)
    [kernel] = compiled
    assert not moved(kernel) and not stack_bytes(kernel)


@both
@pytest.mark.parametrize("cols", [8448, 262144])
def test_a_ring_is_filled_in_vectors_and_nothing_spills(compiled, cols, norm):
    for dtype in (BF16, torch.float16 if norm.centred else torch.float32):
        call = Backward(
            norm, problem_of(norm, 8192, cols, dtype), (8192, cols), torch.device("meta"), ((cols, 1), None, (cols, 1)),
            Needs(True, False, True, norm.centred),
        )  # fmt: skip
        call.steps(call.plan(), call.align(True))[0][0].compiled(call.place.device)
    assert [kernel.name for kernel in compiled] == ["ring_backward"] * 2
    for kernel in compiled:
        assert not stack_bytes(kernel)
        ptx = kernel.asm["ptx"]
        assert set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", ptx)) == {"0x10"}
        assert "st.global.L1::evict_first.L2::cache_hint.v4.b32" in ptx


def through_shared_memory(kernel, matrices=0):
    """The text of a kernel that spills nothing, and has vectors to shared memory and from there."""
    assert not stack_bytes(kernel)
    ptx = kernel.asm["ptx"]
    assert set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", ptx)) == {"0x10"}
    assert "st.global.L1::evict_first.L2::cache_hint.v4.b32" in ptx
    assert ptx.count("matrix") == matrices, "whose rows begin on 16 bytes"
    return ptx


@pytest.mark.parametrize(("norm", "cols", "residual"), [(RMS, 4099, False), (LAYER, 12287, True)], ids=str)
def test_odd_rows_go_through_shared_memory_in_vectors_and_nothing_spills(compiled, norm, cols, residual):
    call = forward_of(norm, 8192, cols, BF16, residual)
    assert call.plan().schedule == "odd"
    kernel_of(call)
    [kernel] = compiled
    ptx = through_shared_memory(kernel)
    assert ptx.count("bar.sync") < 40, "one before each store of many blocks, and not of each"


@pytest.mark.parametrize(
    ("norm", "cols", "residual", "barriers"),
    [(RMS, 44_001, False, 15), (LAYER, 44_001, False, 23), (RMS, 44_001, True, 19), (LAYER, 131_073, False, 24)],
    ids=str,
)
def test_the_widest_odd_rows_come_and_go_in_one_copy_each_and_nothing_spills(compiled, norm, cols, residual, barriers):
    call = forward_of(norm, 2000, cols, BF16, residual)
    plan = call.plan()
    assert plan.schedule == "odd_split"
    kernel_of(call)
    [kernel] = compiled
    assert not stack_bytes(kernel)
    ptx = kernel.asm["ptx"]
    outputs = 2 if residual else 1
    affine = 2 if norm.centred else 1
    # The rows of three stages, the first of them with weight and bias, and the next one's in the loop.
    assert ptx.count("cp.async.bulk.shared::cluster.global") == 4 * outputs + affine
    assert ptx.count("cp.async.bulk.global.shared::cta") == outputs
    # Blocks are put in their place together, and the words of up to 32 slices summed by each warp alone.
    assert ptx.count("bar.sync") <= barriers, ptx.count("bar.sync")
    assert "matrix" not in ptx, "whose rows begin on 16 bytes"
    # What the machine copies is found from where shared memory begins, so that the slots must be there first; behind
    # them are the barriers, and then what sums across threads take.
    slots = slots_of(call.problem) * slot_of(plan, call.problem) * 2 + 128
    placed = {int(place) for place in re.findall(r"global_smem\+(\d+)", ptx)}
    assert 0 <= kernel.metadata.shared - slots <= 64
    assert placed and min(placed) >= slots, placed


@pytest.mark.parametrize(
    ("norm", "cols", "residual", "barriers"),
    [(RMS, 171, False, 14), (LAYER, 389, False, 13), (RMS, 511, True, 19)],
    ids=str,
)
def test_short_odd_rows_go_through_shared_memory_in_vectors_with_few_barriers(compiled, norm, cols, residual, barriers):
    call = forward_of(norm, 200_000, cols, BF16, residual)
    assert call.plan().schedule == "flat"
    kernel_of(call)
    [kernel] = compiled
    ptx = through_shared_memory(kernel)
    # Before each store of a row, around what is stored in vectors, and where a tensor's ends are brought. An SM has one
    # in seven cycles: with one for each block 349,462 x 93 took 42 us for 37.
    assert ptx.count("bar.sync") <= barriers, ptx.count("bar.sync")
    assert ptx.count("shfl.sync") <= (40 if norm.centred else 20), "sums of all rows at once"


@pytest.mark.parametrize(("norm", "cols", "dtype"), [(RMS, 17, BF16), (LAYER, 9, F32)], ids=str)
def test_where_a_thread_has_a_row_it_is_alone_in_shared_memory(compiled, norm, cols, dtype):
    """What it reads and writes there is found from where shared memory begins (kernels/words.py)."""
    rows, dense = 400_000, (cols, 1)
    call = forward_of(norm, rows, cols, dtype)
    kernel_of(call)
    problem, needs = problem_of(norm, rows, cols, dtype), Needs(True, False, True, norm.centred)
    gradients = Backward(norm, problem, (rows, cols), torch.device("meta"), (dense, None, dense), needs)
    plan, align = gradients.plan(), gradients.align(True)
    gradients.steps(plan, align)[0][0].compiled(gradients.place.device)
    assert call.plan().schedule == plan.schedule == "threads"
    for kernel, inputs, stages in zip(compiled, (1, 2), (1, plan.stages), strict=True):
        # Both ends of what is brought and sent, where a tensor begins or ends, are 16 bytes that begin on as many.
        through_shared_memory(kernel, 2 * (inputs + 1) if dtype is F32 else 0)
        slots = inputs * stages * slot_of(call.plan() if inputs == 1 else plan, problem)
        assert kernel.metadata.shared == slots * dtype.itemsize, "the slots, and nothing else"


@pytest.mark.parametrize("norm", [Norm(False, 1e-6, offset=1.0), LAYER], ids=["rms_norm", "layer_norm"])
def test_numbers_that_come_in_64_bits_are_rounded_first(compiled, monkeypatch, norm):
    """Inductor hands them over like that."""
    type_of = compiler.type_of
    monkeypatch.setattr(compiler, "type_of", lambda *given: {"fp32": "fp64"}.get(type_of(*given), type_of(*given)))
    for cols in (2048, 65536):
        compile_forward(norm, 8192, cols, BF16)
    for kernel in compiled:
        wide = [
            line for line in kernel.asm["ttir"].splitlines() if re.search(r"[ <x]f64\b", line) and "tt.func" not in line
        ]
        assert wide and all("arith.truncf" in line for line in wide), wide


@both
@pytest.mark.parametrize("cols", [128, 4096, 32768, 131072])
def test_kernels_take_what_the_launcher_hands_them(compiled, cols, norm):
    """The C launcher hands over pointers, scalars of the types below, and the addresses of two scratch buffers."""
    expected = {"i64": "u64", "i32": "u32", "fp32": "f32"}
    dense, device = (cols, 1), torch.device("meta")
    compile_forward(norm, 8192, cols, BF16)
    call = Backward(
        norm, problem_of(norm, 8192, cols, BF16), (8192, cols), device, (dense, None, dense),
        Needs(True, False, True, norm.centred),
    )  # fmt: skip
    for rows in (1, 8192):
        for step in call.steps(call.plan(rows=rows), call.align(True))[0]:
            step.compiled(call.place.device)
    assert compiled
    for kernel in compiled:
        entry = kernel.asm["ptx"].split(".visible .entry")[1].split(")")[0]
        taken = re.findall(r"\.param \.(\w+)", entry)
        names = kernel.src.fn.arg_names
        pointers = [name for name in names if kernel.src.signature[name].startswith("*")]
        scalars = [name for name in names if name not in pointers and kernel.src.signature[name] != "constexpr"]
        types = [expected[compiler.type_of(name, None)] for name in scalars]
        assert taken == ["u64"] * len(pointers) + types + ["u64"] * 2, kernel.name
        assert len(pointers) <= 16 and len(scalars) <= 32, kernel.name  # launcher.c


@pytest.mark.parametrize("cols", [4096, 7168])
def test_rows_that_are_staged_lie_over_the_threads_that_hold_them_else(compiled, cols):
    """So that a row is summed in the same order. From shared memory nothing spills, or is loaded in small pieces."""
    x = torch.empty(8193, cols, dtype=BF16, device="meta")
    calls = [
        QuantizedForward(RMS, problem_of(RMS, rows, cols, BF16), x[:rows], None, Fp8("block", columnwise=True))
        for rows in (8192, 8193)
    ]
    for call in calls:
        call._steps(16, True)[-1][-1].compiled(call.place.device)
    staged, held = compiled
    assert (staged.name, held.name) == ("staged_forward", "columnwise_forward")
    assert row_layouts(staged) <= row_layouts(held), "which sums nothing else by rows"
    assert not stack_bytes(staged)
    ptx = staged.asm["ptx"]
    assert set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+)", ptx)) == {"0x10"}
    assert "st.global.L1::evict_first.L2::cache_hint.v4.b32" in ptx


def test_warps_meet_once_for_the_sums_of_a_row(compiled):
    """LayerNorm's second sum needs its first, and the memory that they met in; a backward's two come together."""

    def barriers() -> int:
        return sum(name.startswith("BAR") for name, _ in instructions(compiled[-1]))

    compile_forward(RMS, 128, 4096, BF16)
    assert barriers() == 1
    compile_forward(LAYER, 128, 4096, BF16)
    assert barriers() <= 3
    compile_backward(LAYER, 16, 4096, BF16)
    assert compiled[-1].name == "few_backward" and barriers() == 1
