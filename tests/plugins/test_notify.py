"""notify: each channel delivers, failure hooks need no mapping, and secrets are not shown."""

import email
import email.policy
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS, PluginRun, run_plugin, run_raw
from tests.plugins.local_http import HttpServer, Reply, start_http_server, start_raw_server
from tests.plugins.local_smtp import SmtpServer, start_smtp_server
from tests.plugins.plugin_service import Start, events_of, start_with_plugin

MESSAGE = {"text": "the disk is full – really", "title": "Disk"}


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with start_http_server() as running:
        running.pages["/hook"] = Reply(b"ok")
        running.pages["/"] = Reply(b"{}")
        yield running


@pytest.fixture
def mail_server() -> Iterator[SmtpServer]:
    with start_smtp_server() as running:
        yield running


def mail_config(mail_server: SmtpServer, **more: Any) -> dict[str, Any]:
    place = {"channel": "smtp", "host": "127.0.0.1", "port": mail_server.port, "security": "none"}
    return {**place, "from": "ductile@example.com", "to": ["a@example.com", "b@example.com"], **more}


def notify(config: dict[str, Any], payload: dict[str, Any] | None = None) -> PluginRun:
    return run_plugin("notify", "handle", config=config, payload=MESSAGE if payload is None else payload)


# In a service


def test_a_failure_hook_sends_the_failed_job(home: Home, start: Start, server: HttpServer) -> None:
    home.plugin("backup", '#!/bin/sh\ncat > /dev/null\necho \'{"status": "error", "error": "tape is full"}\'\n')
    home.copy_plugin(PLUGINS / "notify")
    home.add(
        "plugins:\n"
        "  backup: {notify_on_complete: true, retry: {max_attempts: 1}}\n"
        f"  notify: {{config: {{channel: webhook, url: '{server.url('/hook')}'}}}}\n"
        "pipelines: [{name: failures, on-hook: job.failed, from_plugin: backup, steps: [{uses: notify}]}]\n"
    )
    service = start()

    service.run("backup")
    (row,) = service.wait_for(
        lambda _: home.rows("SELECT id FROM job_queue WHERE plugin = 'notify'"), "the job of the hook"
    )
    job = service.job(row["id"], wait="30s")

    assert job["status"] == "succeeded", job
    body = json.loads(server.requests[0].body)
    assert body["title"] == "backup poll: dead"
    assert "tape is full" in body["text"]
    assert server.requests[0].headers["idempotency-key"] == row["id"]


def test_ntfy_receives_a_message_with_any_characters(home: Home, start: Start, server: HttpServer) -> None:
    """As JSON, with token, priority and tags."""
    config = {"channel": "ntfy", "url": server.url(), "topic": "alerts", "token": "tk_secret", "tags": ["warning"]}
    service = start_with_plugin(home, start, "notify", config)

    job = service.run("notify", "handle", {**MESSAGE, "priority": 5})

    assert events_of(job) == [("notify.sent", {"channel": "ntfy", **MESSAGE})]
    published = {"topic": "alerts", "title": "Disk", "message": MESSAGE["text"], "priority": 5, "tags": ["warning"]}
    assert json.loads(server.requests[0].body) == published
    assert server.requests[0].headers["authorization"] == "Bearer tk_secret"


def test_a_mail_is_sent_to_every_recipient(home: Home, start: Start, mail_server: SmtpServer) -> None:
    """The Message-ID is the same for every attempt of the job."""
    service = start_with_plugin(home, start, "notify", mail_config(mail_server))

    job = service.run("notify", "handle", MESSAGE)

    assert job["result"]["result"] == "sent over smtp: 2 of 2 recipients"
    ((sender, recipients, text),) = mail_server.mails
    assert (sender, recipients) == ("ductile@example.com", ["a@example.com", "b@example.com"])
    mail = email.message_from_bytes(text, policy=email.policy.default)
    assert (mail["subject"], mail["message-id"]) == ("Disk", f"<{job['job_id']}@ductile>")
    assert mail.get_content().strip() == MESSAGE["text"]


def test_a_command_gets_the_message_on_stdin_and_in_the_environment(home: Home, start: Start, tmp_path: Path) -> None:
    """The message never becomes an argument."""
    out = tmp_path / "out"
    script = f'cat > {out}; echo "$DUCTILE_TITLE $#" >> {out}; echo noise'
    service = start_with_plugin(home, start, "notify", {"channel": "command", "command": ["sh", "-c", script]})

    job = service.run("notify", "handle", {"text": "$(id) ; `id`\n", "title": "-rf"})

    assert job["status"] == "succeeded", job
    assert out.read_text() == "$(id) ; `id`-rf 0\n"


def test_status_429_is_retried_and_403_is_final(home: Home, start: Start, server: HttpServer) -> None:
    """Neither error contains the secret of the URL."""
    replies = iter([Reply(status=429, headers={"Retry-After": "0"}), Reply(b"ok"), Reply(status=403)])
    server.pages["/T0/secret-path"] = lambda _: next(replies)
    config = {"channel": "webhook", "url": server.url("/T0/secret-path"), "text_field": "content"}
    service = start_with_plugin(home, start, "notify", config, retry={"max_attempts": 4})

    busy = service.run("notify", "handle", MESSAGE)
    refused = service.run("notify", "handle", MESSAGE)

    assert busy["status"] == "succeeded"
    assert json.loads(server.requests[1].body)["content"] == MESSAGE["text"]
    assert (refused["status"], refused["last_error"]) == ("failed", "127.0.0.1 responded with status 403")
    assert len(server.requests) == 3


# Messages


@pytest.mark.parametrize(
    ("payload", "title", "text"),
    [
        ({"text": "a", "message": "b"}, "test.event", "a"),
        ({"message": "b"}, "test.event", "b"),
        ({"text": "  ", "message": "b"}, "test.event", "b"),
        ({"text": 7, "title": ["x"]}, "test.event", '{\n  "text": 7,\n  "title": [\n    "x"\n  ]\n}'),
        ({"text": "a", "title": "two\r\nBcc: evil@example.com"}, "two Bcc: evil@example.com", "a"),
        ({"text": "x" * 50}, "test.event", "x" * 19 + "…"),
        ({"text": "half \ud800 pair"}, "test.event", "half ? pair"),
        ({"text": "a", "plugin": "p", "command": "poll", "status": "dead"}, "p poll: dead", "a"),
    ],
)
def test_title_and_text_are_taken_from_the_payload(
    server: HttpServer, payload: dict[str, Any], title: str, text: str
) -> None:
    """Texts are truncated to max_chars."""
    config = {"channel": "webhook", "url": server.url("/hook"), "max_chars": 20 if len(str(payload)) > 60 else 4000}

    outcome = notify(config, payload)

    assert outcome.response["status"] == "ok", outcome
    body = json.loads(server.requests[0].body)
    assert (body["title"], body["text"]) == (title, text)


def test_an_empty_payload_is_final() -> None:
    response = notify({"channel": "command", "command": ["true"]}, {}).response

    assert (response["retry"], "nothing to send" in response["error"]) == (False, True)


def test_include_payload_adds_the_payload(server: HttpServer) -> None:
    notify({"channel": "webhook", "url": server.url("/hook"), "include_payload": True}, {"text": "a", "n": 1})

    assert json.loads(server.requests[0].body)["payload"] == {"text": "a", "n": 1}


# Failures


def test_a_redirect_is_not_followed(server: HttpServer) -> None:
    server.pages["/hook"] = Reply(status=302, headers={"Location": server.url("/")})

    response = notify({"channel": "webhook", "url": server.url("/hook")}).response

    assert (response["error"], response["retry"]) == ("127.0.0.1 responded with status 302", False)
    assert len(server.requests) == 1


def test_a_silent_webhook_is_retried_after_the_timeout() -> None:
    with start_raw_server(lambda over: [b""] if over.wait() else []) as url:
        response = notify({"channel": "webhook", "url": url, "timeout_seconds": 0.5}).response

    assert response["error"] == "a complete response from 127.0.0.1: timed out after 0.5 s"
    assert response["retry"] is True


@pytest.mark.parametrize(
    ("replies", "error", "retry"),
    [
        ({"MAIL": "451 try later"}, "451 try later", True),
        ({"MAIL": "550 never"}, "550 never", False),
        ({"RCPT": "550 unknown user"}, "rejected every recipient", False),
        ({"RCPT": "450 busy"}, "rejected every recipient", True),
        ({"DATA": "554 no"}, "554 no", False),
        ({"MAIL": "nonsense"}, "rejected the mail: -1", True),
    ],
)
def test_an_smtp_reply_decides_on_the_retry(
    mail_server: SmtpServer, replies: dict[str, str], error: str, retry: bool
) -> None:
    """4xx is retried, 5xx is final."""
    mail_server.replies |= replies

    response = notify(mail_config(mail_server)).response

    assert error in response["error"]
    assert response["retry"] is retry


def test_a_rejected_recipient_does_not_stop_the_others(mail_server: SmtpServer) -> None:
    """The log names the recipient. A retry would send the mail twice to the others."""
    mail_server.replies["RCPT a@example.com"] = "550 unknown user"

    response = notify(mail_config(mail_server)).response

    assert response["result"] == "sent over smtp: 1 of 2 recipients"
    assert response["logs"] == [{"level": "warn", "message": "127.0.0.1 rejected a@example.com: 550 unknown user"}]


def test_an_error_after_acceptance_does_not_resend_the_mail(mail_server: SmtpServer) -> None:
    mail_server.replies["QUIT"] = "500 what?"

    assert notify(mail_config(mail_server)).response["status"] == "ok"


@pytest.mark.parametrize("mistake", [{"host": "a..b"}, {"to": "c@example.com\nBcc: d@example.com"}])
def test_an_unusable_address_is_an_invalid_configuration(mail_server: SmtpServer, mistake: Any) -> None:
    assert notify(mail_config(mail_server, **mistake)).code == 78
    assert mail_server.mails == []


def test_a_silent_mail_server_fails_after_the_timeout() -> None:
    with start_raw_server(lambda over: [b""] if over.wait() else []) as url:
        port = int(url.rpartition(":")[2].strip("/"))
        response = notify(mail_config(SmtpServer(port=port), timeout_seconds=0.5)).response

    assert response["retry"] is True
    assert "0.5 s" in response["error"] or "timed out" in response["error"]


def test_a_password_is_sent_only_over_verified_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with start_smtp_server(context) as mail_server:
        more = {"host": "localhost", "security": "starttls", "username": "u", "password": "p"}
        config = mail_config(mail_server, **more)
        foreign = notify(config)
        verbs = list(mail_server.verbs)
        trusted = run_plugin(
            "notify", "handle", config=config, payload=MESSAGE, environ={"SSL_CERT_FILE": str(certificate)}
        )

    assert "CERTIFICATE_VERIFY_FAILED" in foreign.response["error"]
    assert "AUTH" not in verbs
    assert trusted.response["status"] == "ok", trusted
    assert "AUTH" in mail_server.verbs


@pytest.mark.parametrize(
    ("command", "code", "retry", "error"),
    [
        (["sh", "-c", "exit 3"], 0, True, "sh exited with code 3"),
        (["sh", "-c", "exit 78"], 78, False, "sh exited with code 78"),
        (["sleep", "60"], 0, True, "sleep did not finish within 0.5 s"),
        (["/no/such/program"], 78, False, "cannot run /no/such/program"),
        (["sh", "-c", "exec 0<&-; exit 1"], 0, True, "sh exited with code 1"),
        (["echo", "a\0b"], 78, False, "cannot run echo: embedded null byte"),
    ],
)
def test_the_exit_code_of_a_command_decides_on_the_retry(
    command: list[str], code: int, retry: bool, error: str
) -> None:
    """78 is final."""
    outcome = notify({"channel": "command", "command": command, "timeout_seconds": 0.5 if "sleep" in command else 30})

    assert (outcome.code, outcome.response["retry"]) == (code, retry)
    assert error in outcome.response["error"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, "channel is missing"),
        ({"channel": "pigeon"}, "channel must be one of webhook, ntfy, smtp, command"),
        ({"channel": "webhook"}, "url is missing"),
        ({"channel": "webhook", "url": "ftp://x/"}, "begin with http"),
        ({"channel": "webhook", "url": "http://x/", "topic": "t"}, "channel webhook: topic is not a key"),
        ({"channel": "webhook", "url": "http://x/", "headers": {"a": 1}}, "headers must map names to strings"),
        ({"channel": "ntfy"}, "topic is missing"),
        ({"channel": "smtp", "host": "h", "from": "a@b"}, "to is missing"),
        ({"channel": "smtp", "host": "h", "from": "a@b", "to": "c@d", "security": "ssl"}, "security must be one of"),
        (
            {"channel": "smtp", "host": "h", "from": "a@b", "to": "c@d", "security": "none", "username": "u"},
            "require encryption",
        ),
        ({"channel": "smtp", "host": "h", "from": "a@b", "to": "c@d", "port": 99999}, "port must be at most 65535"),
        ({"channel": "command", "command": "rm -rf /"}, "command must be a list"),
        ({"channel": "command", "command": ["x"], "max_chars": 1}, "max_chars must be at least 10"),
    ],
)
def test_an_invalid_configuration_exits_with_78(config: dict[str, Any], error: str) -> None:
    outcome = run_plugin("notify", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.response["error"]


@pytest.mark.parametrize("options", [("-S",), ("-I",)])
def test_the_plugin_runs_in_isolated_mode(options: tuple[str, ...]) -> None:
    """With `-I`, and without site-packages."""
    config = {"channel": "webhook", "url": "https://example.com/"}
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": config, "state": {}}

    assert run_raw("notify", json.dumps(request).encode(), options=options).response["status"] == "ok"
