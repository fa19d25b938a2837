"""The process of a running service.

The log goes into a file, because reading it would take processor time from the service.
"""

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from scripts.benches.lib.instance import TOKEN, Instance


@frozen
class Service:
    """A service that is ready."""

    instance: Instance
    pid: int
    port: int
    webhook_port: int
    started_at: datetime
    """When its process was started, before it was ready."""

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send one API request and return the decoded response. A status of 300 or more is an error."""
        with closing(http.client.HTTPConnection("localhost", self.port, timeout=60)) as connection:
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = json.loads(response.read())
        assert response.status < 300, (method, path, response.status, content)
        return content


@contextmanager
def running_service(instance: Instance) -> Iterator[Service]:
    """Start the service, yield when it is ready, and kill it at the end."""
    command = [sys.executable, "-m", "ductile", "system", "start", "--config", str(instance.path)]
    started_at = datetime.now(UTC)
    with (
        (instance.path / "log.jsonl").open("ab") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr
        try:
            lines: list[str] = []
            while " is ready: " not in "".join(lines[-1:]):
                lines.append(process.stderr.readline())
                if not lines[-1]:
                    raise SystemExit(f"the service did not start: {''.join(lines)}")
            port, webhook_port = (int(port) for port in re.findall(r"http://[^,\s]+:(\d+)", lines[-1]))
            yield Service(instance, process.pid, port, webhook_port, started_at)
        finally:
            process.kill()
