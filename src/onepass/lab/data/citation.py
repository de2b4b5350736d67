"""A row's name beyond its run: run-id#case/backend, as reports offer it and decision records use it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"(?P<run>[^#/\s]+)#(?P<case>[^#/\s]+)/(?P<backend>[^#/\s]+)")


@dataclass(frozen=True)
class Citation:
    run: str
    case: str
    backend: str

    def __str__(self) -> str:
        return f"{self.run}#{self.anchor}"

    @property
    def anchor(self) -> str:
        """The row's place in its run's report: report.html#case/backend."""
        return f"{self.case}/{self.backend}"

    @classmethod
    def parse(cls, name: str) -> Citation:
        """
        >>> Citation.parse("tuesday#rms_norm-forward-4096x4096-float16/onepass").backend
        'onepass'
        """
        found = _FORM.fullmatch(name)
        if found is None:
            raise ValueError(f"{name} is no row's name, which has the form run-id#case/backend")
        return cls(**found.groupdict())
