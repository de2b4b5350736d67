"""Tests that need a CUDA GPU: marked `gpu` where there is one, not collected where there is none."""

import os
from pathlib import Path

import pytest
import torch

# In the interpreter these tests would pass or fail for reasons that have nothing to do with a GPU.
interpreted = os.environ.get("TRITON_INTERPRET", "0") != "0"

# Left out rather than skipped: a skip for each of hundreds of cases would bury the skips that mean something.
collect_ignore_glob = [] if torch.cuda.is_available() and not interpreted else ["*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The hook sees every test of the session, not only those of this folder.
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
