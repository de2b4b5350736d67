"""What the compiler made of a kernel, read from its text: registers, what spills, blocks that move, loads that wait.

It needs no GPU: Triton brings the tools that read an NVIDIA binary. A kernel is what `triton.compile` returns.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_REGISTER = re.compile(r"\bR(\d+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ +)?(\S+)\s*(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L\w+):")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_WORDS = {"64": 2, "128": 4}
#: Of a program.
MOST_WARPS = 32
#: Instructions of a loop in which nothing is done but waiting.
LONGEST_WAIT = 16


def _said(kernel: Any, tool: str, *options: str) -> str:
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(kernel.asm["cubin"])
        binary.flush()
        command = [str(program), *options, binary.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def registers_and_stack(kernel: Any) -> tuple[int, int]:
    """A thread's registers, and the bytes that it keeps in memory because they do not hold them."""
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", _said(kernel, "cuobjdump", "--dump-resource-usage"))
    return int(registers), int(stack)


def instructions(kernel: Any) -> list[tuple[str, str]]:
    """Each with its operands, without what fills up the end."""
    found = _INSTRUCTION.findall(_said(kernel, "nvdisasm", "-c"))
    return [(name, operands) for name, operands in found if name != "NOP"]


def longest_loop(kernel: Any) -> int:
    """How many instructions it has; 0 where there is none but waits, and the code's end, which jumps to itself."""
    places: dict[str, int] = {}
    count, longest = 0, 0
    for line in _said(kernel, "nvdisasm", "-c").splitlines():
        label = _LABEL.match(line)
        if label:
            places[label[1]] = count
        for name, operands in _INSTRUCTION.findall(line):
            count += name != "NOP"
            back = _TARGET.search(operands) if name.startswith("BRA") else None
            if back and back[1] in places:
                longest = max(longest, count - places[back[1]])
    return longest if longest > LONGEST_WAIT else 0


def usual(kernel: Any) -> int:
    """Instructions up to the last end of a program: behind it is what rare numbers need, of a true division."""
    names = [name for name, _ in instructions(kernel)]
    return max(place for place, name in enumerate(names, start=1) if name == "EXIT")


def moved(kernel: Any) -> list[str]:
    """Blocks of columns that go from one layout to another, and so from thread to thread; not a number of each warp."""
    found = re.findall(r"ttg.convert_layout \S+ : tensor<((\d+)x(\d+)x\w+),", kernel.asm["ttgir"])
    return [block for block, rows, cols in found if int(cols) >= 10 and int(rows) * int(cols) > MOST_WARPS * 2]


def loads_that_wait(kernel: Any) -> tuple[int, int]:
    """Loads from memory up to the first store: all, and those behind the first use of what another one loaded."""
    loaded: set[int] = set()
    loads, behind, waited = 0, 0, False
    for name, text in instructions(kernel):
        if name.startswith("STG"):
            return loads, behind
        registers = [int(found) for found in _REGISTER.findall(text)]
        written = registers.pop(0) if _REGISTER.match(text) else None
        waited |= not loaded.isdisjoint(registers)
        if name.startswith("LDG."):
            if written is None:
                break
            loads, behind = loads + 1, behind + waited
            loaded.update(range(written, written + max(_WORDS.get(part, 1) for part in name.split("."))))
        elif written is not None:
            loaded.discard(written)
    raise ValueError("no store was found behind the loads: the tool's text has changed")


def summary(kernel: Any) -> str:
    """A line for a reader."""
    registers, stack = registers_and_stack(kernel)
    code = [name for name, _ in instructions(kernel)]
    first = next((place for place, name in enumerate(code) if name.startswith(("LDG", "LDGSTS"))), len(code))
    loads, behind = loads_that_wait(kernel)
    barriers = sum(name.startswith("BAR") for name in code)
    spilled = f", {stack} bytes spilled" if stack else ""
    through = f", moved: {', '.join(moved(kernel))}" if moved(kernel) else ""
    return (
        f"{registers} registers{spilled}, {len(code)} instructions, {first} before the first load, {barriers} barriers"
        f", {loads} loads before a store, {behind} of them behind a wait{through}"
    )
