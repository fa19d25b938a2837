"""The bundled plugins: each runs in a whole service, and alone with a request on its stdin."""

from tests.e2e.conftest import home, start

__all__ = ["home", "start"]
