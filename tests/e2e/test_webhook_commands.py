"""`ductile webhook` with a running service: endpoints, receipts, test deliveries and signatures."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Service

SECRETS = {
    "plain": "plain-secret-0123456789abcdef",
    "github": "github-secret-0123456789abc",
    "stripe": "whsec_stripe0123456789abcdef",
    "slack": "slack-secret-0123456789abcdef",
    "standard": "whsec_c3RhbmRhcmQtc2VjcmV0LTAxMjM0NTY3ODk=",
}
WEBHOOKS = """\
webhooks:
  listen: localhost:0
  endpoints:
    - {path: /hook/plain, plugin: receiver, secret_ref: plain, signature_header: X-Signature-256}
    - {path: /hook/github, plugin: receiver, scheme: github, secret_ref: [github, plain]}
    - {path: /hook/stripe, plugin: receiver, scheme: stripe, secret_ref: stripe}
    - {path: /hook/slack, plugin: receiver, scheme: slack, secret_ref: slack}
    - {path: /hook/standard, plugin: receiver, scheme: standard-webhooks, secret_ref: standard}
"""

Ductile = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = Home.make(tmp_path_factory.mktemp("hooks") / "ductile")
    home.plugin("receiver", OK)
    home.add("include: [tokens.yaml, webhooks.yaml]\n")
    tokens = "".join(f"  - {{name: {name}, key: '{key}'}}\n" for name, key in SECRETS.items())
    home.write("tokens.yaml", f"tokens:\n{tokens}")
    home.write("webhooks.yaml", WEBHOOKS)
    home.seal()
    running = home.start()
    yield running
    running.kill()


@pytest.fixture
def ductile(service: Service) -> Ductile:
    """Return a function that runs `ductile webhook … --json` and returns exit code and output."""

    def run(*arguments: str, body: bytes = b"") -> tuple[int, Any]:
        command = [sys.executable, "-m", "ductile", "webhook", *arguments, "--json", "--config", str(service.home.path)]
        done = subprocess.run(command, input=body, capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout or done.stderr)

    return run


def url(service: Service, name: str) -> str:
    (line,) = [line for line in service.stderr if " is ready: " in line]
    _, address = re.findall(r"http://[^,\s]+", line)
    return f"{address}/hook/{name}"


@pytest.mark.parametrize("name", SECRETS)
def test_a_test_delivery_is_accepted_for_every_scheme(service: Service, ductile: Ductile, name: str) -> None:
    """It is signed with the scheme of the endpoint and creates a job."""
    code, view = ductile("send", name, "--payload-file", "-", "--url", url(service, name), body=b'{"n": 1}')
    assert (code, view["status"]) == (0, 202)
    assert service.job(view["answer"]["job_id"], wait="20s")["status"] == "succeeded"


def test_a_dry_run_sends_no_delivery(service: Service, ductile: Ductile) -> None:
    code, view = ductile("send", "github", "--payload-file", "-", "--dry-run", "-H", "X-GitHub-Event: push", body=b"{}")
    assert code == 0
    assert view["headers"]["X-GitHub-Event"] == "push"
    assert view["headers"]["x-hub-signature-256"].startswith("sha256=")
    assert SECRETS["github"] not in json.dumps(view)


def test_a_refused_delivery_can_be_verified_afterwards(service: Service, ductile: Ductile, tmp_path: Path) -> None:
    """Its headers and its reason are stored. `verify` compares a body and finds the secret that matches."""
    body, wrong = tmp_path / "body.json", tmp_path / "wrong.json"
    body.write_bytes(b'{"a": 1}')
    wrong.write_bytes(b'{"a": 2}')
    good = ductile("send", "github", "--payload-file", str(body), "--dry-run")[1]["headers"]["x-hub-signature-256"]
    code, view = ductile(
        *("send", "github", "--payload-file", str(wrong), "--url", url(service, "github")),
        *("-H", f"x-hub-signature-256: {good}", "-H", "X-Api-Key: a-key-of-the-sender"),
    )
    assert (code, view["status"]) == (1, 403)
    service.wait_for_log("rejected at /hook/github")
    _, receipts = ductile("receipts", "github", "--refused")
    (refused, *_) = receipts["refused"]
    assert (refused["reason"], refused["status"]) == ("the signature matches no secret of the endpoint", 403)
    assert refused["headers"]["x-hub-signature-256"] == [good]
    assert "a-key-of-the-sender" not in json.dumps(refused)
    code, verdict = ductile("verify", str(refused["id"]), "--payload-file", str(wrong))
    assert (code, verdict["valid"], verdict["same_body"]) == (1, False, True)
    code, verdict = ductile("verify", str(refused["id"]), "--payload-file", str(body))
    assert (code, verdict["fits"], verdict["same_body"]) == (0, ["github"], False)


def test_a_signature_can_be_verified_without_a_delivery(ductile: Ductile) -> None:
    headers = ductile("send", "stripe", "--payload-file", "-", "--dry-run", body=b"{}")[1]["headers"]
    header = f"stripe-signature: {headers['stripe-signature']}"
    assert ductile("verify", "stripe", "--payload-file", "-", "-H", header, body=b"{}")[0] == 0
    code, verdict = ductile("verify", "stripe", "--payload-file", "-", "-H", header, body=b"[]")
    assert (code, verdict["reason"]) == (1, "the signature matches no secret of the endpoint")


def test_endpoints_are_listed_with_their_last_delivery(service: Service, ductile: Ductile) -> None:
    ductile("send", "standard", "--payload-file", "-", "--url", url(service, "standard"), body=b"{}")
    code, view = ductile("list")
    assert code == 0
    listed = {one["name"]: one for one in view["endpoints"]}
    assert listed["standard"]["last_accepted_at"] is not None
    assert (listed["github"]["target"], listed["github"]["secrets"]) == ("plugin receiver", ["github", "plain"])
    accepted = ductile("receipts", "standard", "--accepted")[1]["accepted"]
    assert accepted[0]["delivery"].startswith("msg_")


def test_a_body_is_text_or_a_file(ductile: Ductile, tmp_path: Path) -> None:
    """--payload is JSON and --payload-file names a file. The same bytes have the same signature."""
    body = tmp_path / "body.json"
    body.write_bytes(b'{"a": 1}')
    as_text = ductile("send", "github", "--payload", '{"a": 1}', "--dry-run")[1]["headers"]["x-hub-signature-256"]
    as_file = ductile("send", "github", "--payload-file", str(body), "--dry-run")[1]["headers"]["x-hub-signature-256"]

    assert as_text == as_file
    assert ductile("verify", "github", "--payload", '{"a": 1}', "-H", f"x-hub-signature-256: {as_text}")[0] == 0


def test_a_file_name_in_payload_is_read_with_a_note(service: Service, tmp_path: Path) -> None:
    """The note names --payload-file."""
    (tmp_path / "body.json").write_bytes(b'{"a": 1}')
    command = [sys.executable, "-m", "ductile", "webhook", "send", "github", "--payload", "body.json", "--dry-run"]
    where = ["--config", str(service.home.path)]
    done = subprocess.run([*command, *where], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.splitlines()[0][:18]) == (0, "would post 8 bytes")
    assert done.stderr == "note: body.json is a file; use --payload-file body.json\n"


@pytest.mark.parametrize(
    "arguments", [("--payload", "nothing.json"), ("--payload", "{"), ("--payload", "{}", "--payload-file", "-"), ()]
)
def test_an_invalid_body_is_a_usage_error(ductile: Ductile, arguments: tuple[str, ...]) -> None:
    """The exit code is 2, and the error names --payload-file."""
    code, error = ductile("send", "github", *arguments, "--dry-run")

    assert (code, error["code"]) == (2, "usage")
    assert "--payload-file" in error["error"] + error["hint"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("send", "nothing", "--payload-file", "-"), 1),
        (("verify", "999999", "--payload-file", "-"), 1),
        (("send", "github", "--payload-file", "/does/not/exist"), 2),
        (("send", "github", "--payload-file", "-", "-H", "no colon"), 2),
        (("send", "github", "--payload-file", "-", "--url", "http://127.0.0.1:1/x"), 69),
    ],
)
def test_an_invalid_command_exits_with_an_error(ductile: Ductile, arguments: tuple[str, ...], code: int) -> None:
    found, error = ductile(*arguments, body=b"{}")
    assert found == code
    assert error["error"]
