"""Actors: the text that records who caused a job or an action.

`token:NAME`, `uid:1000(alice)` (a local user), `signal:SIGTERM`, or the producer of a job as in `submitted_by`:
`scheduler`, `webhook:/path`, `relay:peer`, `hook`. `service` is Ductile itself, `address:192.0.2.1` a caller without a
valid token.
"""

import os
import pwd
import signal
from functools import lru_cache

SERVICE = "service"


def token_actor(name: str) -> str:
    return f"token:{name}"


def address_actor(peer: str) -> str:
    return f"address:{peer}"


@lru_cache(maxsize=64)
def user_actor(uid: int) -> str:
    """Return the actor of a local user, with the user's name if the host knows it."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"uid:{uid}"
    return f"uid:{uid}({name})"


def process_actor() -> str:
    """Return the actor of the user that runs this process."""
    return user_actor(os.getuid())


def signal_actor(number: int) -> str:
    return f"signal:{signal.Signals(number).name}"
