"""Commands of the exchange against a service: run them to their end, or start them and wait for facts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.e2e.commands import Completed
from tests.e2e.service import WAIT_SECONDS, Home

Process = subprocess.Popen[str]


def command_line(home: Home, *args: str) -> list[str]:
    """Return the command with the configuration of `home`, before `--`."""
    end = args.index("--") if "--" in args else len(args)
    config = ["--config", str(home.path)]
    return [sys.executable, "-m", "ductile", "exchange", *args[:end], *config, *args[end:]]


def exchange(
    home: Home, *args: str, stdin: str | bytes | None = None, environ: Mapping[str, str] | None = None
) -> Completed:
    """Run `ductile exchange ARGS…` to its end."""
    content = stdin.encode() if isinstance(stdin, str) else stdin or b""
    done = subprocess.run(
        command_line(home, *args),
        input=content,
        capture_output=True,
        check=False,
        timeout=WAIT_SECONDS,
        env={**os.environ, **(environ or {})},
    )
    return Completed(done.returncode, done.stdout.decode(), done.stderr.decode())


def exchange_json(home: Home, *args: str, exit_code: int = 0) -> Any:
    """Run the command with --json, check its exit code and return its output."""
    end = args.index("--") if "--" in args else len(args)
    done = exchange(home, *args[:end], "--json", *args[end:])
    assert done.exit_code == exit_code, done
    return json.loads(done.stdout)


def publish(home: Home, topic: str, body: str, *flags: str) -> str:
    """Publish a message and return its id."""
    done = exchange(home, "publish", topic, body, *flags)
    assert done.exit_code == 0, done
    return done.stdout.strip()


@contextmanager
def started(home: Home, *args: str) -> Iterator[Process]:
    """Start the command; kill it at the end of the block if it still runs."""
    with subprocess.Popen(
        command_line(home, *args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background process inherits an ignored SIGINT, which the command respects.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            yield process
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=WAIT_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
