"""The fixtures of the engine and of the HTTP server."""

from tests.engine.conftest import env, instance, make_plugin, make_request, make_script, nothing_is_left_behind
from tests.web.conftest import described, start_server

__all__ = [
    "described",
    "env",
    "instance",
    "make_plugin",
    "make_request",
    "make_script",
    "nothing_is_left_behind",
    "start_server",
]
