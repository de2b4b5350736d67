"""A plugin for pytest, `-p gpu_part --part 2/4`: every fourth of the tests that a file has, from the second on.

scripts/gpu-check has the longest files tested so, one part beside the other.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="which part of how many")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--part").split("/"))
    others = [item for place, item in enumerate(items) if place % parts != part - 1]
    items[:] = items[part - 1 :: parts]
    config.hook.pytest_deselected(items=others)
