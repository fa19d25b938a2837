"""The OpenAPI document against the API: generated valid and invalid requests get the documented responses."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sample_pipelines import add_sample_pipelines
from tests.e2e.service import TOKEN, Home, Service

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXCLUDED_PATHS = "^/events|^/exchange/follow|^/system/reload|^/queue|^/plugin/(recorder|broken|notifying|one-attempt)/"
"""Streams do not end, a reload or a pause affects other requests, and one plugin represents all."""
RUN_SCHEMATHESIS = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = add_sample_pipelines(Home.make(tmp_path / "ductile")).start()
    try:
        for plugin in ("ok", "broken"):
            running.run(plugin)
        yield running
    finally:
        running.stop()


def test_generated_requests_get_the_documented_responses(service: Service, tmp_path: Path) -> None:
    """No response has a 5xx status, an undocumented status or a body that violates its schema."""
    completed = subprocess.run(
        [
            *(sys.executable, "-c", RUN_SCHEMATHESIS, "run", f"{service.url}/openapi.json", "--no-color"),
            *("--header", f"Authorization: Bearer {TOKEN}"),
            *("--checks", CHECKS, "--exclude-path-regex", EXCLUDED_PATHS),
            *("--phases", "coverage,fuzzing", "--mode", "all", "--max-examples", "4"),
            *("--seed", "1", "--generation-deterministic", "--request-timeout", "20"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )

    assert completed.returncode == 0, completed.stdout[-6000:] + completed.stderr[-2000:]
    assert " passed" in completed.stdout
    errors = [line for line in service.lines if line["level"] == "error" and line["component"] == "api"]
    assert errors == []
