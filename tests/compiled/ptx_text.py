"""Reads the text of a kernel's PTX: what it is given, its instructions, and where its labels are."""

from __future__ import annotations

import re

_STATEMENT = re.compile(r"(?:@(!?)(\S+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_PLACE = re.compile(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\d+)\s*)?\]")
_IGNORED = re.compile(r"^\s*\.(?:loc|file|pragma|maxntid|reqntid|minnctapersm)[^\n]*", re.MULTILINE)
_LABEL = re.compile(r"(?<![\w:])(\$?[A-Za-z_]\w*):(?!:)")

#: Whether the guard is negated, the guard, the instruction, and its operands.
Instruction = tuple[str, ...]


def read(ptx: str) -> tuple[list[str], list[Instruction], dict[str, list[int]]]:
    """Names of the parameters; instructions; each label's places, of which scopes of inline assembly have their own."""
    entry = re.search(r"\.entry (\w+)\((.*?)\)\n.*?\{(.*)^\}", ptx, re.DOTALL | re.MULTILINE)
    assert entry is not None
    parameters = re.findall(r"\.param \.\w+ .*?(\w+_param_\d+)", entry[2])
    body = _IGNORED.sub("", re.sub(r"//[^\n]*", "", entry[3]))
    code: list[Instruction] = []
    labels: dict[str, list[int]] = {}
    static = 0
    for text in _LABEL.sub(r"\1:;", body).split(";"):
        statement = re.sub(r"^[{}\s]+", "", text.strip())  # where scopes of inline assembly begin and end
        if statement.endswith(":"):
            labels.setdefault(statement[:-1], []).append(len(code))
            continue
        shared = re.match(r"\.shared .*?(\w+)\[\d+\]", statement)
        if shared:  # whoever declares a name again means another place
            static += 64
            code.append(("", "", "symbol", shared[1], str(static)))
        elif statement and not statement.startswith("."):
            found = _STATEMENT.fullmatch(statement)
            assert found is not None, statement
            code.append((found[1] or "", found[2] or "", found[3], *operands_of(found[4])))
    return parameters, code, labels


def place_in(text: str) -> tuple[str, int]:
    """What an address is made of: a register or a symbol, and the bytes beyond it."""
    found = _PLACE.fullmatch(text)
    assert found is not None, text
    return found[1], int(found[2] or 0)


def operands_of(text: str) -> list[str]:
    """Split at commas that are not between braces or brackets."""
    found = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", text)
    return [each.replace("{ ", "{").replace(" }", "}") for each in found]
