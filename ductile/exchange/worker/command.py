"""The process that handles a message: its program, its environment and its limits."""

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

from ductile.engine.process.start import ProcessSpec, SpawnFailed
from ductile.engine.process.streams import Caps
from ductile.exchange.worker.values import HeldClaim, WorkSettings

SECRETS = ("DUCTILE_API_KEY", "DUCTILE_API_TOKEN")
"""Variables that the command does not inherit."""
META_PREFIXES = ("DUCTILE_META_", "PLUGBOARD_META_")


def process_spec(claim: HeldClaim, work: WorkSettings) -> ProcessSpec | SpawnFailed:
    """Return the process for this message. The program is searched in PATH for each message."""
    name = work.argv[0]
    program = shutil.which(name, path=work.environment.get("PATH"))
    if program is None and not (os.sep in name and os.path.exists(name)):
        where = "no such file" if os.sep in name else "not found in PATH"
        return SpawnFailed(f"{name}: {where}", errno.ENOENT)
    return ProcessSpec(
        argv=[program or name, *work.argv[1:]],
        request=claim.body.encode(),
        environment=command_environment(claim, work.environment),
        timeout_seconds=work.timeout_seconds,
        caps=Caps(stdout=claim.max_body_size),
    )


def command_environment(claim: HeldClaim, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited environment without API keys, with the ids of the message and its `meta` values."""
    own = {name: value for name, value in inherited.items() if name not in SECRETS}
    return own | {
        **_meta_variables(claim.metadata.get("meta")),
        "DUCTILE_MESSAGE_ID": claim.message_id,
        "DUCTILE_CONVERSATION_ID": claim.conversation_id,
        "DUCTILE_TOPIC": claim.topic,
        "DUCTILE_CLAIM_ID": claim.claim_id,
        "DUCTILE_DELIVERY": str(claim.delivery),
    }


def _meta_variables(meta: Any) -> dict[str, str]:
    """Return `DUCTILE_META_KEY` and `PLUGBOARD_META_KEY` for each value: text as it is, other values as JSON.

    A value that no environment can hold is left out: a sender must not be able to make a command fail to start.
    """
    if not isinstance(meta, dict):
        return {}
    texts = {key: value if isinstance(value, str) else _json(value) for key, value in meta.items()}
    return {
        f"{prefix}{re.sub('[^A-Z0-9]', '_', key.upper(), flags=re.ASCII)}": text
        for prefix in META_PREFIXES
        for key, text in texts.items()
        if "\0" not in text
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
