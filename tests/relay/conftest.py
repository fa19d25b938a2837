"""Fixtures of the engine: every test must end its processes and close its descriptors."""

from tests.engine.conftest import instance, nothing_is_left_behind

__all__ = ["instance", "nothing_is_left_behind"]
