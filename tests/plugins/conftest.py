"""Fixtures for tests of the bundled plugins, in a service and alone."""

from tests.e2e.conftest import home, start

__all__ = ["home", "start"]
