"""Scripts as modules, for tests of their parts."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def load_script(name: str) -> Any:
    """Loaded anew, so that what a test changes in it is gone with the test."""
    spec = spec_from_loader(name, SourceFileLoader(name, str(SCRIPTS / name)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
