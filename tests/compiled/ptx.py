"""Runs what the compiler made, without a GPU: a kernel's PTX, an instruction at a time for all threads, by NumPy.

For bits: the order in which a kernel adds shows here as on a GPU, where Triton's interpreter adds by NumPy's own rules.
Arithmetic is IEEE's but where PTX is approximate (rsqrt), and fma is rounded twice, once to 64 bits. Threads go in
step, and those that part meet again where their ways do; but what a warp puts into shared memory, no other may touch
before a barrier, nor put something where another has looked. Asynchronous copies come as late as they may, or at once.
Programs that wait for each other's words run in turns, each until it waits, and shared memory begins as NaN. It knows
what tile.py and few.py are made of, and in Gluon few_split.py, flat.py, odd.py, ring.py and threads.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from compiled.ptx_text import operands_of, place_in, read

#: Shared memory of a program; a program of a cluster sees others' at addresses that begin with their number and one.
WINDOW = 1 << 24
FLOATS = {"f16": (np.uint16, np.float16), "f32": (np.uint32, np.float32)}
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "neu": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
#: What a loop is made of in which nothing is done but waiting.
LOOKS = ("ld.", "setp.", "or.pred", "vote.", "sub.", "bra")
#: Rounds in which nobody does anything but look: a word is looked at a round after it was asked for.
IDLE = 2


class Machine:
    """A kernel's programs, `cluster` of them at a time. `late`: copies come when they are waited for, not before."""

    def __init__(self, ptx: str, warps: int, cluster: int = 1, late: bool = True) -> None:
        self.threads, self.cluster, self.late = 32 * warps, cluster, late
        self.lanes = np.arange(self.threads * cluster)
        self.parameters, self.code, self.labels = read(ptx)
        self.symbols = {"global_smem": 4096}
        self.numbers: dict[tuple[str, int], np.ndarray] = {}  # that stand in the code

    def run(self, programs: int, arguments: Sequence[torch.Tensor | int | float], together: bool = False) -> None:
        """Tensors are read and written where they are. `together`: programs may wait for each other."""
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        memories = [each.contiguous().view(torch.uint8).reshape(-1).numpy() for each in tensors]
        starts = np.cumsum([1 << 20, *(-(-len(each) // 256) * 256 + 4096 for each in memories)])
        self.memory = np.zeros(int(starts[-1]), np.uint8)
        for start, each in zip(starts, memories, strict=False):
            self.memory[start : start + len(each)] = each
        addresses = iter(starts)
        values: list[np.ndarray] = []
        for each in arguments:
            if isinstance(each, torch.Tensor):
                values.append(np.uint64(next(addresses)))
            else:
                values.append(np.float32(each).view(np.uint32) if isinstance(each, float) else np.uint64(each))
        assert 0 <= len(self.parameters) - len(values) <= 2, "behind a kernel's own are two of the runtime"
        self.given = dict(zip(self.parameters, values, strict=False))
        clusters = [self._cluster_from(first, programs) for first in range(0, programs, self.cluster)]
        with np.errstate(all="ignore"):
            for some in [clusters] if together else [[each] for each in clusters]:
                self._take_turns(some)
        for start, each in zip(starts, memories, strict=False):
            each[:] = self.memory[start : start + len(each)]

    def _take_turns(self, running: list[Iterator[None]]) -> None:
        """Each until it waits, and then the next one."""
        idle = 0
        while running:
            before, waiting = self.memory.copy(), [each for each in running if next(each, "done") != "done"]
            idle = idle + 1 if waiting == running and np.array_equal(before, self.memory) else 0
            assert idle <= IDLE, "all that are left wait for ever"
            running = waiting

    def _cluster_from(self, first: int, programs: int) -> Iterator[None]:
        """A machine of its own, over the same memory, that stops wherever it waits."""
        return copy.copy(self)._run(first, programs)

    def _run(self, first: int, programs: int) -> Iterator[None]:
        own = self.lanes // self.threads
        self.symbols = dict(self.symbols)
        self.shared = np.full((self.cluster, 1 << 18), 0xFF, np.uint8)
        #: Of each byte, by which warp it was written and read (-1: by several), and behind how many barriers.
        self.seen = {use: np.full((2, self.shared.size), -2) for use in ("written", "read")}
        self.barriers = 0
        self.copies: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]  # on their way, by groups
        self.registers: dict[str, np.ndarray] = {
            "%tid.x": (self.lanes % self.threads).astype(np.uint64), "%ctaid.x": (first + own).astype(np.uint64),
            "%cluster_ctarank": own.astype(np.uint64), "%nctaid.x": np.full(len(self.lanes), programs, np.uint64),
        }  # fmt: skip
        everybody = np.ones(len(self.lanes), bool)
        here, elsewhere = everybody, {}  # threads that wait at a place for the others to come there
        place = 0
        while place < len(self.code):
            if place in elsewhere:
                here = here | elsewhere.pop(place)
            negated, guard, name, *operands = self.code[place]
            place += 1
            on = here & (self.registers[guard] ^ bool(negated)) if guard else here
            kind, *parts = name.split(".")
            if kind == "bra":
                to = min(self.labels[operands[0]], key=lambda label: abs(label - place))
                if on.any() and not np.array_equal(on, here):
                    stays, others = (on, here & ~on) if to < place else (here & ~on, on)
                    stop = place if to < place else to
                    elsewhere[stop] = elsewhere.get(stop, np.zeros_like(here)) | others
                    here = stays
                if on.any() and (to < place or np.array_equal(on, here)):
                    waits = to < place and all(step[2].startswith(LOOKS) for step in self.code[to:place])
                    place = to
                    if waits:
                        yield
            elif kind == "ret":
                assert np.array_equal(here, everybody), "threads that parted do not meet again"
                return
            elif kind == "symbol":
                self.symbols[operands[0]] = int(operands[1])
            elif name.startswith(("bar.sync", "barrier.cluster.wait")):
                assert np.array_equal(here, everybody), "some threads do not come to the barrier"
                self.barriers += 1
            elif name == "cp.async.commit_group":
                self.copies.append([])
            elif name == "cp.async.wait_group":
                self._arrive(int(operands[0]))
            elif kind not in ("bar", "barrier", "fence", "createpolicy"):
                try:
                    self._do(kind, parts, operands, on)
                except AssertionError:
                    raise
                except Exception as error:
                    raise ValueError(f"this machine does not know how to do {name} {', '.join(operands)}") from error

    def _arrive(self, but: int) -> None:
        """The copies of all groups are there, but of the newest ones."""
        groups = len(self.copies) - 1
        for _ in range(groups - but):
            for at, value in self.copies.pop(0):
                self.shared.reshape(-1)[at] = value

    def _use(self, at: np.ndarray, on: np.ndarray, use: str, changed: np.ndarray | None = None) -> None:
        """Bytes of shared memory, some for each thread that is on. To write what is there already disturbs nobody."""
        for warp in np.unique(self.lanes[on] // 32):
            threads = on & (self.lanes // 32 == warp)
            own = (at[threads] if changed is None else at[threads][changed[threads]]).reshape(-1)
            for other in ("written",) if use == "read" else ("written", "read"):
                by, behind = self.seen[other][:, own]
                assert not ((behind == self.barriers) & (by != warp)).any(), f"{use} while another warp has {other} it"
            by, behind = self.seen[use][:, own]
            several = (behind == self.barriers) & (by != warp)
            self.seen[use][:, own] = np.where(several, -1, warp), np.full(len(own), self.barriers)

    def value(self, operand: str, bits: int = 32) -> np.ndarray:
        unsigned = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
        if operand in self.registers:
            found = self.registers[operand]
            return found if found.dtype == bool else found.astype(unsigned)
        if operand in self.symbols:
            return np.full(len(self.lanes), self.symbols[operand], unsigned)
        if (operand, bits) not in self.numbers:
            number = int(operand[2:], 16) if operand.startswith(("0f", "0F")) else int(operand, 0)
            self.numbers[operand, bits] = np.full(len(self.lanes), number % (1 << bits), unsigned)
            self.numbers[operand, bits].flags.writeable = False
        return self.numbers[operand, bits]

    def _float(self, operand: str, kind: str) -> np.ndarray:
        unsigned, real = FLOATS[kind]
        return self.value(operand, np.dtype(unsigned).itemsize * 8).astype(unsigned).view(real)

    def _keep(self, target: str, value: np.ndarray, on: np.ndarray) -> None:
        if value.dtype.kind == "f":
            value = value.view({2: np.uint16, 4: np.uint32}[value.dtype.itemsize])
        elif value.dtype.kind == "i":
            value = value.view(f"u{value.dtype.itemsize}")
        before = self.registers.get(target)
        if not on.all():
            value = np.where(on, value, np.zeros_like(value) if before is None else before.astype(value.dtype))
        self.registers[target] = value

    def _integer(self, operand: str, kind: str) -> np.ndarray:
        value = self.value(operand, int(kind[1:]))
        return value.view(f"i{value.dtype.itemsize}") if kind[0] == "s" else value

    def _do(self, kind: str, parts: list[str], operands: list[str], on: np.ndarray) -> None:
        last = parts[-1]
        if kind in ("ld", "st"):
            self._move(kind, parts, operands, on)
        elif kind == "cp" and parts[1] in ("cg", "ca"):
            self._copy(operands, on)
        elif kind in ("ldmatrix", "stmatrix"):
            self._move_matrix(kind, "trans" in parts, operands, on)
        elif kind == "mov":
            self._mov(int(last[1:]) if last != "pred" else 1, operands, on)
        elif kind == "shfl":
            assert parts[1] in ("bfly", "idx"), "other shuffles are not known"
            lane = self.lanes % 32
            by = self.value(operands[2]).astype(np.int64)
            source = self.lanes - lane + (lane ^ by if parts[1] == "bfly" else by)
            self._keep(operands[0], self.value(operands[1])[source], on)
        elif kind == "setp":
            order, *both = parts
            sides = [
                self._float(each, last) if last[0] == "f" else self._integer(each, last.replace("b", "u"))
                for each in operands[1:3]
            ]
            result = COMPARISONS[order](*sides)
            if both[0] == "or":
                result |= self.registers[operands[3]]
            self._keep(operands[0], result, on)
        elif kind == "selp":
            bits = int(last[1:])
            chosen = np.where(self.registers[operands[3]], self.value(operands[1], bits), self.value(operands[2], bits))
            self._keep(operands[0], chosen, on)
        elif kind == "cvt":
            self._convert(parts, operands, on)
        elif kind == "vote":
            assert parts[1] == "any", "other votes are not known"
            voted = (self.registers[operands[1]] & on).reshape(-1, 32).any(1)
            self._keep(operands[0], np.repeat(voted, 32), on)
        elif kind == "atom":
            self._exchange(parts, operands, on)
        elif kind == "mapa":
            self._keep(operands[0], (self.value(operands[2]) + 1) * WINDOW + self.value(operands[1]), on)
        elif last[0] == "f" and last[1:].isdigit():
            self._keep(operands[0], self._arithmetic(kind, last, operands[1:]), on)
        else:
            self._keep(operands[0], self._integers(kind, parts, operands[1:]), on)

    def _arithmetic(self, kind: str, last: str, operands: list[str]) -> np.ndarray:
        one, *others = (self._float(each, last) for each in operands)
        if kind == "fma":
            wide = [each.astype(np.float64) for each in (one, *others)]
            return (wide[0] * wide[1] + wide[2]).astype(one.dtype)
        if kind == "rsqrt":
            return (1 / np.sqrt(one.astype(np.float64))).astype(one.dtype)
        if kind in ("neg", "abs"):
            return -one if kind == "neg" else np.abs(one)
        operation = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
            "min": np.minimum,
        }[kind]  # fmt: skip
        result: np.ndarray = operation(one, others[0])
        return result

    def _integers(self, kind: str, parts: list[str], operands: list[str]) -> np.ndarray:
        last = parts[-1]
        if last == "pred":
            one, *others = (self.registers[each] for each in operands)
            if kind == "not":
                return ~one
            return {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[kind](one, others[0])
        if kind == "prmt":
            low, high, how = (self.value(each).astype(np.uint64) for each in operands)
            both, result = high << np.uint64(32) | low, np.zeros(len(self.lanes), np.uint64)
            for number in (np.uint64(4 * each) for each in range(4)):
                chosen = how >> number
                assert not (chosen & np.uint64(8)).any(), "signs are not known"
                byte = both >> (chosen & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
                result |= byte << number * np.uint64(2)
            return result.astype(np.uint32)
        if kind == "bfe":
            value, start, length = (self.value(each) for each in operands)
            if last == "s32":  # up to the sign, and down again
                left = np.uint32(32) - length
                return (value << (left - start)).view(np.int32) >> left.view(np.int32)
            return value >> start & ((np.uint32(1) << length) - 1)
        typed = last.replace("b", "u")
        if typed.endswith("16x2"):
            pairs = (np.ascontiguousarray(self.value(each)).view(np.uint16) for each in operands)
            return {"add": np.add, "sub": np.subtract}[kind](*pairs).view(np.uint32)
        one, *others = (self._integer(each, typed) for each in operands)
        if kind in ("mul", "mad"):
            wide = np.dtype(f"{one.dtype.kind}{one.itemsize * 2}") if parts[0] == "wide" else one.dtype
            product: np.ndarray = one.astype(wide) * others[0].astype(wide)
            return product + self._integer(operands[2], typed).astype(wide) if kind == "mad" else product
        if kind in ("shl", "shr"):
            by = self.value(operands[1]).astype(one.dtype)
            return one << by if kind == "shl" else one >> by
        if kind in ("not", "neg"):
            return ~one if kind == "not" else -one
        operation = {
            "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
            "min": np.minimum, "max": np.maximum, "div": np.floor_divide, "rem": np.remainder,
        }[kind]  # fmt: skip
        result: np.ndarray = operation(one, others[0])
        return result

    def _mov(self, bits: int, operands: list[str], on: np.ndarray) -> None:
        target, source = operands
        if source.startswith("{"):
            parts = operands_of(source[1:-1])
            each = bits // len(parts)
            value = np.zeros(len(self.lanes), np.uint64)
            for number, part in enumerate(parts):
                value |= self.value(part, each).astype(np.uint64) << np.uint64(each * number)
            self._keep(target, value if bits == 64 else value.astype(np.uint32), on)
        elif target.startswith("{"):
            names = operands_of(target[1:-1])
            each, value = bits // len(names), self.value(source, bits).astype(np.uint64)
            for number, name in enumerate(names):
                part = value >> np.uint64(each * number) & np.uint64((1 << each) - 1)
                self._keep(name, part.astype({16: np.uint16, 32: np.uint32}[each]), on)
        else:
            value = self.value(source, bits) if bits > 1 else self._truth(source)
            self._keep(target, value, on)

    def _truth(self, source: str) -> np.ndarray:
        return self.registers[source] if source in self.registers else np.full(len(self.lanes), source != "0")

    def _convert(self, parts: list[str], operands: list[str], on: np.ndarray) -> None:
        to, source = parts[-2], parts[-1]
        if to in ("bf16x2", "f16x2"):
            high, low = (_narrowed(self._float(each, "f32"), to[:-2]).astype(np.uint32) for each in operands[1:])
            self._keep(operands[0], high << np.uint32(16) | low, on)
        elif to in ("bf16", "f16"):
            self._keep(operands[0], _narrowed(self._float(operands[1], "f32"), to), on)
        elif source == "bf16":
            self._keep(operands[0], self.value(operands[1], 16).astype(np.uint32) << np.uint32(16), on)
        elif source == "f16":
            self._keep(operands[0], self._float(operands[1], "f16").astype(np.float32), on)
        elif to == "f32":
            self._keep(operands[0], self._integer(operands[1], source).astype(np.float32), on)
        else:
            value = self._integer(operands[1], source.replace("b", "u"))
            kept = value.astype(f"{to[0].replace('s', 'i')}{int(to[1:]) // 8}")
            self._keep(operands[0], kept if kept.itemsize > 1 else kept.astype(f"{kept.dtype.kind}2"), on)

    def _move(self, kind: str, parts: list[str], operands: list[str], on: np.ndarray) -> None:
        where = next(each for each in operands if each.startswith("["))
        base, beyond = place_in(where)
        if parts[0] == "param":
            self._keep(operands[0], np.full(len(self.lanes), self.given.get(base, 0)), on)
            return
        size = int(parts[-1][1:]) // 8
        listed = operands[0] if kind == "ld" else operands[1]
        names = operands_of(listed[1:-1]) if listed.startswith("{") else [listed]
        begin = self.value(base, 64).astype(np.int64) + beyond
        memory = self.memory
        if parts[0].startswith("shared"):
            program, begin = self.lanes // self.threads, begin & (WINDOW * 64 - 1)
            program = np.where(begin >= WINDOW, begin // WINDOW - 1, program)
            memory, begin = self.shared.reshape(-1), program * self.shared.shape[1] + begin % WINDOW
        for number, name in enumerate(names):
            at = (begin + number * size)[:, None] + np.arange(size)
            unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
            if kind == "ld":
                if parts[0].startswith("shared"):
                    self._use(at, on, "read")
                there = memory[np.where(on[:, None], at, 0)]
                self._keep(name, np.ascontiguousarray(there).view(unsigned)[:, 0], on)
                continue
            value = np.ascontiguousarray(self.value(name, size * 8).astype(unsigned))
            value = value.view(np.uint8).reshape(len(value), size)
            if parts[0].startswith("shared"):
                self._put(at, value, on)
            else:
                memory[at[on]] = value[on]

    def _put(self, at: np.ndarray, value: np.ndarray, on: np.ndarray) -> None:
        """Into shared memory, a warp after the other: several may write the same."""
        memory = self.shared.reshape(-1)
        for warp in np.unique(self.lanes[on] // 32):
            threads = on & (self.lanes // 32 == warp)
            self._use(at, threads, "written", value != memory[np.where(on[:, None], at, 0)])
            memory[at[threads]] = value[threads]

    def _exchange(self, parts: list[str], operands: list[str], on: np.ndarray) -> None:
        before, where, value = operands
        words = self.value(place_in(where)[0], 64)[on]
        assert "exch" in parts and len(np.unique(words)) == len(words), "this machine exchanges a word by one thread"
        self._move("ld", ["global", parts[-1]], [before, where], on)
        self._move("st", ["global", parts[-1]], [where, value], on)

    def _copy(self, operands: list[str], on: np.ndarray) -> None:
        """From global memory to shared; zeros for what is not asked for."""
        (to, beyond), (start, further) = (place_in(each) for each in operands[:2])
        size = int(operands[2], 0)
        wanted = self.value(operands[3]) if len(operands) > 3 else np.full(len(self.lanes), size)
        source = (self.value(start, 64).astype(np.int64) + further)[:, None] + np.arange(size)
        there = np.arange(size) < wanted.astype(np.int64)[:, None]
        value = np.where(there, self.memory[np.where(there, source, 0)], 0).astype(np.uint8)
        begin = self.lanes // self.threads * self.shared.shape[1] + self.value(to, 64).astype(np.int64) + beyond
        at = begin[:, None] + np.arange(size)
        self._use(at, on, "written")
        if self.late:
            self.copies[-1].append((at[on], value[on]))
        else:
            self.shared.reshape(-1)[at[on]] = value[on]

    def _move_matrix(self, kind: str, transposed: bool, operands: list[str], on: np.ndarray) -> None:
        """Of 8 x 8 values of 16 bits, of which eight threads have the rows' addresses, and each has two values."""
        assert on.all()
        where, listed = operands if kind == "stmatrix" else operands[::-1]
        start, beyond = place_in(where)
        begin = self.value(start, 64).astype(np.int64) % WINDOW + beyond
        memory, size = self.shared.reshape(-1), self.shared.shape[1]
        lane = self.lanes % 32
        for number, name in enumerate(operands_of(listed[1:-1]) if listed.startswith("{") else [listed]):
            # The places of a thread's two values, each of two bytes.
            pair = lane[:, None] % 4 * 2 + np.arange(2)
            row, col = (pair, lane[:, None] // 4) if transposed else (lane[:, None] // 4, pair)
            rows = begin[(self.lanes - lane + 8 * number)[:, None] + row]
            at = self.lanes[:, None] // self.threads * size + rows + col * 2
            at = (at[:, :, None] + np.arange(2)).reshape(len(lane), 4)
            if kind == "ldmatrix":
                self._use(at, on, "read")
                self._keep(name, np.ascontiguousarray(memory[at]).view(np.uint32)[:, 0], on)
            else:
                self._put(at, np.ascontiguousarray(self.value(name)).view(np.uint8).reshape(-1, 4), on)


def _narrowed(value: np.ndarray, to: str) -> np.ndarray:
    if to == "f16":
        return value.astype(np.float16).view(np.uint16)
    bits = torch.from_numpy(np.ascontiguousarray(value)).to(torch.bfloat16).view(torch.int16).numpy()
    return bits.view(np.uint16)
