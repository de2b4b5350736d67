"""Tuning over suites: what it cannot be asked for, it says before anything is timed."""

import pytest

from onepass.lab.suite import suite
from onepass.lab.tuning import tune_cases


def test_fp8_is_refused_before_any_other_case_is_tuned():
    begun = []
    quantizing = suite("fp8").cases
    cases = [*suite("seed").cases, *quantizing]
    with pytest.raises(ValueError, match=rf"^{quantizing[0].id} cannot be tuned: "):
        tune_cases(cases, progress=lambda number, case: begun.append(case))
    assert begun == []
