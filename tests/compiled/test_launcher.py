"""The C launcher against a stand-in for the CUDA driver: what is launched is what was prepared and handed over."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
import triton

from onepass.handover import outline
from onepass.plan import launcher
from onepass.plan.launch import kind_of

HERE = Path(__file__).parent
CUDA_HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
COMPILER = shutil.which("cc") or shutil.which("gcc")

#: What the launcher is handed comes from here, so that a script need not import onepass, which takes seconds.
SCALARS = launcher.packed(["i64", "i32", "fp32", "i32"], [-(1 << 40), -7, 1.5, 2**31 - 1])
SCRIPT = f"""
import ctypes, sys
import onepass_launcher

driver = ctypes.CDLL("libcuda.so.1")
seen = (ctypes.c_ulonglong * 64).in_dll(driver, "seen")
function = onepass_launcher.load("known", bytes([8]), 1024, 0)
launch = onepass_launcher.prepare(function, 5, 96, 1024, {{cooperative}}, {{cluster}}, 2, {SCALARS!r})
launch(2**63 + 1, 2**64 - 16, 32)
print(*seen[:6], *seen[8:16])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the launcher, and with a libcuda.so.1 that any process finds which looks there first."""
    if COMPILER is None:
        pytest.skip("there is no C compiler, and so no Triton launcher either")
    folder = tmp_path_factory.mktemp("launcher")
    build = [COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-I{CUDA_HEADERS}"]
    source = Path(launcher.__file__).with_name("launcher.c")
    headers = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run([*build, headers, str(source), "-o", str(folder / "onepass_launcher.so")], check=True)
    subprocess.run([*build, str(HERE / "fake_driver.c"), "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), str(Path(launcher.__file__).parents[2])])
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": paths}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("cooperative", "cluster"), [(False, 1), (True, 1), (False, 8)])
def test_a_launch_hands_over_all_it_was_given(built, cooperative, cluster):
    ran = run(built, SCRIPT.format(cooperative=cooperative, cluster=cluster))
    assert ran.returncode == 0, ran.stderr
    numbers = [int(word) for word in ran.stdout.split()]
    assert numbers[:6] == [5, 96, 1024, int(cooperative), 2**63 + 1, cluster]
    pointers, wide, narrow, real, largest, scratch = (
        numbers[6:8], numbers[8], numbers[9], numbers[10], numbers[11], numbers[12:14],
    )  # fmt: skip
    assert pointers == [2**64 - 16, 32]
    assert wide == 2**64 - (1 << 40)
    assert narrow % 2**32 == 2**32 - 7
    assert struct.unpack("<f", struct.pack("<I", real % 2**32)) == (1.5,)
    assert largest % 2**32 == 2**31 - 1
    assert scratch == [0, 0]


UNFIT = "ValueError: a call's launches and tensors do not go together"
REFUSED = {
    "launch(1, 2)": "TypeError: a launch takes a stream and 2 addresses",
    "launch(1, 2, 3, 4)": "TypeError: a launch takes a stream and 2 addresses",
    "launch(1, 2, x=3)": "TypeError: a launch takes a stream and 2 addresses",
    "launch(1, 2, 'three')": "TypeError: an integer is required",
    "launch(1, 2, -3)": "OverflowError: can't convert negative int to unsigned",
    "onepass_launcher.prepare(8, 1, 1, 0, False, 1, 17, b'')": "ValueError: too many arguments for a launch",
    "onepass_launcher.prepare(8, 1, 1, 0, False, 1, 1, bytes(264))": "ValueError: too many arguments for a launch",
    "onepass_launcher.load('known', bytes(8), 0, 0)": "RuntimeError: the CUDA driver refused a kernel: no such thing",
    "onepass_launcher.load('other', bytes([8]), 0, 0)": "RuntimeError: the CUDA driver refused a kernel: no such thing",
    "onepass_launcher.load('known', bytes([8]), 0, 2)": "RuntimeError: the CUDA driver refused a kernel: no such thing",
    "onepass_launcher.call((), 1, 1, (1,), (), 0, (1, 2, 3))": UNFIT,
    "onepass_launcher.call((), 1, 1, ((),), (1,), 0, (1, 2, 3))": UNFIT,
    "onepass_launcher.call(((launch, (0,)),), 2, 1, (), (), 0, (1, 2, 3))": UNFIT,
    "onepass_launcher.call(((launch, (0, 2)),), 2, 1, (), (), 0, (1, 2, 3))": UNFIT,
    "onepass_launcher.call(((print, (0, 1)),), 2, 1, (), (), 0, (1, 2, 3))": UNFIT,
    "onepass_launcher.call((), 33, 1, (), (), 0, (1, 2, 3))": UNFIT,
    "onepass_launcher.call((), 1, 1, [], (), 0, (1, 2, 3))": "TypeError: argument 4 must be tuple, not list",
    "fail(); launch(1, 2, 3)": "RuntimeError: the CUDA driver refused a launch: no such thing",
}
ATTEMPTS = """
def fail():
    ctypes.c_int.in_dll(driver, "failure").value = 1

for call in {calls}:
    try:
        exec(call)
        print("nothing was raised")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""


def test_a_launch_that_cannot_be_is_refused(built):
    ran = run(built, SCRIPT.format(cooperative=False, cluster=1) + ATTEMPTS.format(calls=list(REFUSED)))
    assert ran.returncode == 0, ran.stderr
    assert dict(zip(REFUSED, ran.stdout.splitlines()[1:], strict=True)) == REFUSED


def test_a_thread_that_has_done_nothing_yet_launches_all_the_same(built):
    elsewhere = """
import threading
seen[0] = 0
thread = threading.Thread(target=launch, args=(1, 2, 3))
thread.start()
thread.join()
print(seen[0])
"""
    ran = run(built, SCRIPT.format(cooperative=False, cluster=1) + elsewhere)
    assert ran.stdout.split()[-1] == "5", ran.stderr


@pytest.mark.parametrize(("shared", "expected"), [(49152, (0, 0)), (49153, (232448 - 16, 1))])
def test_much_shared_memory_is_asked_for(built, shared, expected):
    script = f"""
import ctypes, onepass_launcher
onepass_launcher.load("known", bytes([8]), {shared}, 0)
driver = ctypes.CDLL("libcuda.so.1")
print(*(ctypes.c_int.in_dll(driver, name).value for name in ("allowed", "preferred")))
"""
    ran = run(built, script)
    assert tuple(map(int, ran.stdout.split())) == expected, ran.stderr


CALL = """
import ctypes, sys, weakref
import onepass_launcher

driver = ctypes.CDLL("libcuda.so.1")
seen = (ctypes.c_ulonglong * 64).in_dll(driver, "seen")
launched = ctypes.c_int.in_dll(driver, "launched")
current = 1
made = []


class Tensor:
    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def make(address, kind):
    made.append(kind)
    return Tensor(address.value + 4096)


def prepared(pointers):
    function = onepass_launcher.load("known", bytes([pointers + 1]), 0, 1)
    return onepass_launcher.prepare(function, pointers, 32, 0, False, 1, pointers, (7).to_bytes(8, "little"))


class Address:
    value = 1 << 20


like = Address()
# Of two tensors and one that is absent: two outputs, and one that is absent between them.
parts = ((prepared(4), (0, 1, 2, 3)), (prepared(2), (3, 1)))
functions = (make, lambda: current, lambda gpu: 10 * gpu)
call = onepass_launcher.call(parts, 4, 3, ((like, "first"), None, (like, "last")), (2, 1, 0), 1, functions)
"""

CALLS = {
    """
y, none, x = call(Tensor(16), None, Tensor(32))
print(y.address - like.value, none, x.address - like.value, *made)
""": "4096 None 4096 first last",
    "print(launched.value, seen[0], seen[4], seen[8] - like.value, seen[9], seen[10])": "2 2 10 4096 32 7",
    "made.clear(); print(call(Tensor(16), None, Tensor(40)), launched.value, made)": "None 2 []",
    "like.value += 8; print(call(Tensor(16), None, Tensor(32)), launched.value); like.value -= 8": "None 2",
    "current = 0; print(call(Tensor(16), None, Tensor(32)), launched.value); current = 1": "None 2",
    "call(Tensor(16), Tensor(16), Tensor(32))": "TypeError: a call was made for 4 tensors, and has 5",
    "call(Tensor(16), None)": "TypeError: a call takes 3 tensors, or None for some",
    "call(Tensor(16), None, b=1)": "TypeError: a call takes 3 tensors, or None for some",
    "call(Tensor(16), None, 5)": "AttributeError: 'int' object has no attribute 'data_ptr'",
    "call(Tensor('x'), None, Tensor(16))": "TypeError: an integer is required",
    "del like.value; del Address.value; call(Tensor(16), None, x)": (
        "AttributeError: 'Address' object has no attribute 'value'"
    ),
    # Nothing that a call was given, made or failed over is kept alive.
    """
like.value, x = 0, Tensor(16)
results = [weakref.ref(each) for each in (x, *call(x, None, x)) if each]
made.clear()
del x
print(*(each() for each in results), sys.getrefcount(like))
""": "None None None 4",
    "del call; print(sys.getrefcount(like))": "2",
}


def test_a_call_makes_its_outputs_and_launches(built):
    attempts = """
for line in {lines}:
    try:
        exec(line)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""
    ran = run(built, CALL + attempts.format(lines=list(CALLS)))
    assert ran.returncode == 0, ran.stderr
    assert dict(zip(CALLS, ran.stdout.splitlines(), strict=True)) == CALLS


@pytest.mark.parametrize("shape", [(3, 4), (5,), (), (0, 7)])
def test_outputs_are_made_with_what_inductors_function_takes(shape):
    """The one for a CPU, which is the same but for the device."""
    made = torch._C._dynamo.guards._empty_strided_cpu(*kind_of(outline(shape, torch.bfloat16)))
    assert (made.shape, made.dtype, made.is_contiguous()) == (shape, torch.bfloat16, True)


def test_the_driver_says_which_gpu_has_clusters(built):
    ran = run(built, "import onepass_launcher as l; print(*(l.has_clusters(ordinal) for ordinal in (0, 1, 2)))")
    assert ran.stdout.split() == ["False", "True", "False"], ran.stderr


def test_triton_is_not_imported_before_something_is_compiled():
    """Its import takes longer than all else in the first call of a process that finds its kernels on disk."""
    script = "import sys, onepass.eager, onepass.search; print('triton' in sys.modules)"
    assert run(HERE, script).stdout.strip() == "False"


def test_without_a_driver_triton_launches():
    """The launcher is not built, or not loaded, where there is no CUDA; nothing is raised."""
    folder = Path(launcher.__file__).parents[2]
    script = "from onepass.plan.launcher import launcher; print(launcher())"
    ran = run(folder, script)
    assert ran.stdout.strip() == "None", ran.stderr
