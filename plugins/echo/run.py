#!/usr/bin/env python3
"""The echo plugin: one request on stdin, one answer on stdout. See README.md."""

import json
import signal
import sys
import time

MODES = ("ok", "error", "hang", "protocol_error")
EX_CONFIG = 78


def main() -> int:
    request = json.loads(sys.stdin.buffer.read())
    if request.get("protocol") != 2:
        print("echo speaks protocol 2 only", file=sys.stderr)
        return EX_CONFIG
    config = request.get("config") or {}
    mode = config.get("mode") or "ok"
    if mode not in MODES:
        return answer(status="error", error=f"mode must be one of {', '.join(MODES)}, not {mode!r}", retry=False)
    if request["command"] == "health":
        return answer(status="ok", result=f"echo is well, mode {mode}")
    if mode == "error":
        return answer(status="error", error="echo was configured to fail", retry=True)
    if mode == "protocol_error":
        print("this is not JSON")
        return 0
    if mode == "hang":
        print("echo hangs, as configured", file=sys.stderr, flush=True)
        while True:
            signal.pause()
    return echo(request, config)


def echo(request: dict, config: dict) -> int:
    command = request["command"]
    payload = (request.get("event") or {}).get("payload") if command == "handle" else request.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    message = payload.get("message", config.get("message") or "hello from echo")
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return answer(
        status="ok",
        result=f"echo: {text}",
        events=[{"type": f"echo.{command}", "payload": {**payload, "message": message, "command": command}}],
        state_updates={"last_run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())},
        logs=[{"level": "info", "message": f"echoed job {request['job_id']}"}],
    )


def answer(**response: object) -> int:
    # ASCII escapes: the answer is valid whatever the locale is and whatever the request contained.
    print(json.dumps(response))
    return 0


if __name__ == "__main__":
    sys.exit(main())
