"""Check one rule with many cases in one test, and report every counterexample."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def check_all(cases: Iterable[tuple[Any, ...]], check: Callable[..., None]) -> None:
    """Call `check` with every case, and fail with a list of all cases that it rejects."""
    failures = []
    for case in cases:
        try:
            check(*case)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{case}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} counterexamples:\n" + "\n".join(failures)
