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
import triton

from onepass.plan import launcher

HERE = Path(__file__).parent
CUDA_HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
COMPILER = shutil.which("cc") or shutil.which("gcc")

SCRIPT = """
import ctypes, sys
import onepass_launcher
from onepass.plan.launcher import packed

driver = ctypes.CDLL("libcuda.so.1")
seen = (ctypes.c_ulonglong * 64).in_dll(driver, "seen")
scalars = packed(["i64", "i32", "fp32", "i32"], [-(1 << 40), -7, 1.5, 2**31 - 1])
launch = onepass_launcher.prepare(8, 5, 96, 1024, {cooperative}, {cluster}, 2, scalars)
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


REFUSED = {
    "launch(1, 2)": "TypeError: a launch takes a stream and 2 addresses",
    "launch(1, 2, 3, 4)": "TypeError: a launch takes a stream and 2 addresses",
    "launch(1, 2, x=3)": "TypeError: a launch takes a stream and 2 addresses",
    "launch(1, 2, 'three')": "TypeError: an integer is required",
    "launch(1, 2, -3)": "OverflowError: can't convert negative int to unsigned",
    "onepass_launcher.prepare(8, 1, 1, 0, False, 1, 17, b'')": "ValueError: too many arguments for a launch",
    "onepass_launcher.prepare(8, 1, 1, 0, False, 1, 1, bytes(264))": "ValueError: too many arguments for a launch",
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


def test_the_driver_says_which_gpu_has_clusters(built):
    ran = run(built, "import onepass_launcher as l; print(*(l.has_clusters(ordinal) for ordinal in (0, 1, 2)))")
    assert ran.stdout.split() == ["False", "True", "False"], ran.stderr


def test_without_a_driver_triton_launches():
    """The launcher is not built, or not loaded, where there is no CUDA; nothing is raised."""
    folder = Path(launcher.__file__).parents[2]
    script = "from onepass.plan.launcher import launcher; print(launcher())"
    ran = run(folder, script)
    assert ran.stdout.strip() == "None", ran.stderr
