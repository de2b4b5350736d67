"""What the documentation shows runs as it stands, on a CPU and without the interpreter."""

import json
import re
import subprocess
import sys
from pathlib import Path

from processes import run_on_plain_cpu

ROOT = Path(__file__).resolve().parent.parent


def documents():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks():
    """Every Python block of README.md and docs, by its place. A document that does not exist yet has none."""
    for path in documents():
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for match in re.finditer(r"^```(?:python|py)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.name}:{line}", match.group(1)


def test_docstring_examples_run_as_they_stand():
    printed = run_on_plain_cpu("""
        import doctest, json, onepass
        runner, found = doctest.DocTestRunner(), {}
        for name in onepass.__all__:
            tests = doctest.DocTestFinder(recurse=False).find(getattr(onepass, name), name, globs={})
            found[name] = [sum(len(test.examples) for test in tests), sum(runner.run(test).failed for test in tests)]
        print("\\n" + json.dumps(found))
    """)
    found = json.loads(printed.splitlines()[-1])
    assert all(examples for examples, _ in found.values()), f"a public name without an example: {found}"
    assert not any(failed for _, failed in found.values()), printed


def test_the_readme_runs_as_it_stands():
    """Each block by itself, with names of its own; in one process, because it takes seconds to begin one."""
    blocks = dict(python_blocks())
    assert "README.md" in {place.partition(":")[0] for place in blocks}
    printed = run_on_plain_cpu(f"""
        for place, block in {blocks!r}.items():
            exec(compile(block, place, "exec"), {{}})
            print("\\n" + place)
    """)
    assert set(blocks) <= set(printed.splitlines())


def test_the_readmes_tables_are_those_of_the_figures():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "performance-table"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
