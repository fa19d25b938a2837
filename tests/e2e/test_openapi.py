"""The description of the API against the API: generated requests, good and bad, get the answers it promises."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.furnished import furnish
from tests.e2e.service import TOKEN, Home, Service

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LEFT_OUT = "^/events|^/system/reload|^/queue|^/plugin/(asks|broken|told|worn)/"
"""Streams do not end, a reload or a pause would disturb the rest, and one plugin stands for all."""
BEGIN = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = furnish(Home.make(tmp_path / "ductile")).start()
    try:
        for plugin in ("ok", "broken"):
            running.run(plugin)
        yield running
    finally:
        running.stop()


def test_generated_requests_get_what_the_description_promises(service: Service, tmp_path: Path) -> None:
    """No 5xx, no status that is not described, no body that is not what its schema says."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", BEGIN, "run", f"{service.url}/openapi.json", "--no-color"),
            *("--header", f"Authorization: Bearer {TOKEN}"),
            *("--checks", CHECKS, "--exclude-path-regex", LEFT_OUT),
            *("--phases", "coverage,fuzzing", "--mode", "all", "--max-examples", "4"),
            *("--seed", "1", "--generation-deterministic", "--request-timeout", "20"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    faults = [line for line in service.lines if line["level"] == "error" and line["component"] == "api"]
    assert faults == []
