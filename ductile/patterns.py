"""Patterns of another package that are compiled when they are first used, and not when the package is imported.

PyYAML compiles its patterns as it is imported, one of them over all of Unicode. That is a tenth of a short command, and
who reads with libyaml uses none of them. `strict_yaml` imports it in here.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LatePattern:
    """Stands for `re.compile(text, flags)` until it is asked for something."""

    def __init__(self, text: str, flags: int) -> None:
        self.pattern, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "pattern":  # of one that was not made by its constructor
            raise AttributeError(name)
        found = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, found)  # the next who asks for it does not come here
        return found


@contextmanager
def compiled_late(package: str) -> Iterator[None]:
    """Inside, modules of the package get patterns that cost nothing before they are used."""
    at_once = re.compile

    def compile_late(pattern: Any, flags: int = 0) -> Any:
        # Only the package itself: others may need a true pattern, and other threads go on meanwhile.
        who = sys._getframe(1).f_globals.get("__name__", "")
        return LatePattern(pattern, flags) if who.startswith(f"{package}.") else at_once(pattern, flags)

    re.compile = compile_late
    try:
        yield
    finally:
        re.compile = at_once
