"""Small plugins for tests of the service, and one that blocks until the test releases it."""

import os

from attrs import define

from tests.e2e.service import Home

OK = """#!/bin/sh
cat >/dev/null
echo '{"status": "ok", "result": "done"}'
"""
FAILING = """#!/bin/sh
cat >/dev/null
echo '{"status": "error", "error": "no luck", "retry": false}'
"""
FALLIBLE = """#!/usr/bin/python3
import json, os, sys
request = json.load(sys.stdin)
payload = (request.get("event") or request).get("payload", {})
if os.path.exists("broken"):
    print(json.dumps({"status": "error", "error": "broken", "retry": False}))
else:
    print(json.dumps({"status": "ok", "result": json.dumps(payload, sort_keys=True),
                      "events": [{"type": "fallible.done", "payload": payload}]}))
"""
"""Fails while a file `broken` exists, else emits its payload as the event fallible.done."""
REQUEST_TO_STATE = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": "recorded", "state_updates": {"request": request}}))
"""
"""Returns its request as a state update."""
REQUEST_TO_FILE = """#!/bin/sh
cat > "request-$DUCTILE_JOB_ID.json"
echo "$DUCTILE_JOB_ID" >> effects
echo '{"status": "ok", "result": "received"}'
"""
"""Writes its request to a file of its own and appends the job id to `effects`."""
BLOCKING = """#!/bin/sh
cat > /dev/null
printf x > started
dd bs=1 count=1 < release > /dev/null 2>&1
echo '{"status": "ok", "result": "released"}'
"""


@define
class BlockingPlugin:
    """A plugin `blocking` whose jobs wait until the test releases them."""

    _started: int
    _release: int

    @classmethod
    def make(cls, home: Home) -> "BlockingPlugin":
        """Add the plugin to the configuration and open its FIFOs."""
        for name in ("started", "release"):
            os.mkfifo(home.path / name)
        home.plugin("blocking", BLOCKING)
        # Both ends are open here, so that neither side waits in open().
        return cls(*(os.open(home.path / name, os.O_RDWR) for name in ("started", "release")))

    def wait_until_started(self) -> None:
        """Wait until one job has started."""
        os.read(self._started, 1)

    def release(self, jobs: int = 1) -> None:
        """Let this many jobs end."""
        os.write(self._release, b"x" * jobs)

    def close(self) -> None:
        os.close(self._started)
        os.close(self._release)
