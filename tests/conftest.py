"""What holds for every test outside tests/gpu: seeds, poisoned outputs, and a record of what was launched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# All but these call kernels with CPU tensors, which only Triton's interpreter takes: TRITON_INTERPRET=1 before pytest.
_ANYWHERE = {f"test_{name}.py" for name in ("docs", "gpu_receipt", "layout", "planner", "reference")}
_TESTS = {path.name for path in Path(__file__).parent.glob("test_*.py")}
collect_ignore = [] if INTERPRETED else sorted(_TESTS - _ANYWHERE)


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter turns arrays of one element into numbers in a way that NumPy wants to give up; thousands of times.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:triton.runtime.interpreter")


@pytest.fixture(autouse=True)
def poisoned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every fresh buffer is full of NaN, so that an element no kernel wrote shows up; see test_poison.py.

    This is PyTorch's own switch: in deterministic mode torch.empty and its kin fill what they allocate.
    """
    if request.path.parent != Path(__file__).parent:  # tests/gpu has its own
        yield
        return
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="session")
def few_partials_at_a_time() -> Iterator[None]:
    """In the interpreter a load takes its time whatever it loads, and a sum of partials has 16 to 64, most of nothing.

    Here it has two to eight, and goes round again where there are more partials.
    """
    if not INTERPRETED:
        yield
        return
    from onepass.plan import column_sums, in_force

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_sums, "thresholds", lambda: replace(in_force.thresholds(), partials_elements=1024))
        yield


@pytest.fixture(autouse=True, scope="session")
def language_patched_once_a_launch() -> Iterator[None]:
    """Triton's interpreter puts its own functions into triton.language with a launch, and again with each call of a
    function from a kernel: two fifths of the time that these tests would take. Here it does so once a launch.
    """
    if not INTERPRETED:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    patch_lang, patched = interpreter._patch_lang, set[str]()

    def once(function: Any) -> Any:
        names = {each.__name__ for each in function.__globals__.values() if each is tl or each is tl.core}
        if patched and names <= patched:
            return interpreter._LangPatchScope()  # of nothing
        launched = not patched
        patched.update(names)
        scope = patch_lang(function)
        if launched:
            restore = scope.restore

            def restore_all() -> None:
                patched.clear()
                restore()

            scope.restore = restore_all
        return scope

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        yield


@dataclass(frozen=True)
class Launch:
    kernel: str
    programs: int
    dtypes: dict[str, torch.dtype | None]  # of the kernel's pointers; None: absent
    constants: dict[str, Any]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """The kernels that ran since the test began, in order."""
    from onepass import handover
    from onepass.plan import in_force

    seen: list[Launch] = []
    kernel = handover.kernel

    def recorded(named: Any, dtypes: Any, constants: Any, **how: Any) -> Any:
        bind = kernel(named, dtypes, constants, **how)

        def bind_recorded(programs: int, scalars: Any) -> Any:
            run = bind(programs, scalars)

            def launch(stream: int, *arguments: Any) -> None:
                pointers = dict(zip(named.function.arg_names, dtypes, strict=False))
                seen.append(Launch(named.name, programs, pointers, dict(constants)))
                run(stream, *arguments)

            return launch

        return bind_recorded

    monkeypatch.setattr(handover, "kernel", recorded)
    with in_force.override():  # thresholds of its own, though the same ones, so that no call is ready yet
        yield seen
