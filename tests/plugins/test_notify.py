"""The notify plugin: each channel delivers, a failure hook needs nothing but the step, and secrets stay secret."""

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
from tests.plugins.bundled import PLUGINS, Said, ask, said
from tests.plugins.local_http import Reply, Site, sending, serving
from tests.plugins.local_smtp import Mailbox, receiving
from tests.plugins.serving import Start, events_of, serve

SAYS = {"text": "the disk is full – really", "title": "Disk"}


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        running.pages["/hook"] = Reply(b"ok")
        running.pages["/"] = Reply(b"{}")
        yield running


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with receiving() as running:
        yield running


def mail_config(mailbox: Mailbox, **more: Any) -> dict[str, Any]:
    place = {"channel": "smtp", "host": "127.0.0.1", "port": mailbox.port, "security": "none"}
    return {**place, "from": "ductile@example.com", "to": ["a@example.com", "b@example.com"], **more}


def notified(config: dict[str, Any], payload: dict[str, Any] | None = None) -> Said:
    return ask("notify", "handle", config=config, payload=SAYS if payload is None else payload)


# Through the service


def test_it_is_the_step_of_a_failure_hook_as_it_is(home: Home, start: Start, site: Site) -> None:
    """A job that fails for good is told to a webhook, with what failed and why."""
    home.plugin("backup", '#!/bin/sh\ncat > /dev/null\necho \'{"status": "error", "error": "tape is full"}\'\n')
    home.copy_plugin(PLUGINS / "notify")
    home.add(
        "plugins:\n"
        "  backup: {notify_on_complete: true, retry: {max_attempts: 1}}\n"
        f"  notify: {{config: {{channel: webhook, url: '{site.url('/hook')}'}}}}\n"
        "pipelines: [{name: told, on-hook: job.failed, from_plugin: backup, steps: [{uses: notify}]}]\n"
    )
    service = start()

    service.run("backup")
    (row,) = service.wait_for(
        lambda _: home.rows("SELECT id FROM job_queue WHERE plugin = 'notify'"), "the job of the hook"
    )
    job = service.job(row["id"], wait="30s")

    assert job["status"] == "succeeded", job
    body = json.loads(site.seen[0].body)
    assert body["title"] == "backup poll: dead"
    assert "tape is full" in body["text"]
    assert site.seen[0].headers["idempotency-key"] == row["id"]


def test_a_message_to_ntfy_arrives_with_every_character(home: Home, start: Start, site: Site) -> None:
    """As JSON, with token, priority and tags."""
    config = {"channel": "ntfy", "url": site.url(), "topic": "alerts", "token": "tk_secret", "tags": ["warning"]}
    service = serve(home, start, "notify", config)

    job = service.run("notify", "handle", {**SAYS, "priority": 5})

    assert events_of(job) == [("notify.sent", {"channel": "ntfy", **SAYS})]
    said_to = {"topic": "alerts", "title": "Disk", "message": SAYS["text"], "priority": 5, "tags": ["warning"]}
    assert json.loads(site.seen[0].body) == said_to
    assert site.seen[0].headers["authorization"] == "Bearer tk_secret"


def test_a_mail_reaches_every_recipient(home: Home, start: Start, mailbox: Mailbox) -> None:
    """One mail, with a Message-ID that is the same for every attempt of the job."""
    service = serve(home, start, "notify", mail_config(mailbox))

    job = service.run("notify", "handle", SAYS)

    assert job["result"]["result"] == "sent over smtp: 2 of 2 recipients"
    ((sender, recipients, text),) = mailbox.mails
    assert (sender, recipients) == ("ductile@example.com", ["a@example.com", "b@example.com"])
    mail = email.message_from_bytes(text, policy=email.policy.default)
    assert (mail["subject"], mail["message-id"]) == ("Disk", f"<{job['job_id']}@ductile>")
    assert mail.get_content().strip() == SAYS["text"]


def test_a_command_reads_the_message_and_nothing_of_it_is_an_argument(home: Home, start: Start, tmp_path: Path) -> None:
    """The text on stdin, title and text in the environment; what the program prints does not spoil the answer."""
    out = tmp_path / "out"
    script = f'cat > {out}; echo "$DUCTILE_TITLE $#" >> {out}; echo noise'
    service = serve(home, start, "notify", {"channel": "command", "command": ["sh", "-c", script]})

    job = service.run("notify", "handle", {"text": "$(id) ; `id`\n", "title": "-rf"})

    assert job["status"] == "succeeded", job
    assert out.read_text() == "$(id) ; `id`-rf 0\n"


def test_a_receiver_that_is_busy_is_asked_again_and_one_that_refuses_is_not(
    home: Home, start: Start, site: Site
) -> None:
    """429 waits as long as it is told; 403 is final, and neither tells the secret in the URL."""
    answers = iter([Reply(status=429, headers={"Retry-After": "0"}), Reply(b"ok"), Reply(status=403)])
    site.pages["/T0/secret-path"] = lambda _: next(answers)
    config = {"channel": "webhook", "url": site.url("/T0/secret-path"), "text_field": "content"}
    service = serve(home, start, "notify", config, retry={"max_attempts": 4})

    busy = service.run("notify", "handle", SAYS)
    refused = service.run("notify", "handle", SAYS)

    assert busy["status"] == "succeeded"
    assert json.loads(site.seen[1].body)["content"] == SAYS["text"]
    assert (refused["status"], refused["last_error"]) == ("failed", "127.0.0.1 responded with status 403")
    assert len(site.seen) == 3


# What is said


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
def test_title_and_text_come_from_the_payload(site: Site, payload: dict[str, Any], title: str, text: str) -> None:
    """text, or message, or all of it; cut to max_chars."""
    config = {"channel": "webhook", "url": site.url("/hook"), "max_chars": 20 if len(str(payload)) > 60 else 4000}

    outcome = notified(config, payload)

    assert outcome.answer["status"] == "ok", outcome
    body = json.loads(site.seen[0].body)
    assert (body["title"], body["text"]) == (title, text)


def test_nothing_to_say_is_final() -> None:
    """An empty payload is not worth a message."""
    answer = notified({"channel": "command", "command": ["true"]}, {}).answer

    assert (answer["retry"], "nothing to send" in answer["error"]) == (False, True)


def test_include_payload_sends_everything(site: Site) -> None:
    """For receivers that are programs."""
    notified({"channel": "webhook", "url": site.url("/hook"), "include_payload": True}, {"text": "a", "n": 1})

    assert json.loads(site.seen[0].body)["payload"] == {"text": "a", "n": 1}


# What goes wrong


def test_a_redirect_is_not_followed(site: Site) -> None:
    """The message goes where the operator said or nowhere."""
    site.pages["/hook"] = Reply(status=302, headers={"Location": site.url("/")})

    answer = notified({"channel": "webhook", "url": site.url("/hook")}).answer

    assert (answer["error"], answer["retry"]) == ("127.0.0.1 responded with status 302", False)
    assert len(site.seen) == 1


def test_a_receiver_that_does_not_answer_costs_a_bounded_time() -> None:
    """And may be asked again."""
    with sending(lambda over: [b""] if over.wait() else []) as url:
        answer = notified({"channel": "webhook", "url": url, "timeout_seconds": 0.5}).answer

    assert answer["error"] == "a complete response from 127.0.0.1: timed out after 0.5 s"
    assert answer["retry"] is True


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
def test_a_mail_server_decides_whether_to_try_again(
    mailbox: Mailbox, replies: dict[str, str], error: str, retry: bool
) -> None:
    """4xx may pass, 5xx will not."""
    mailbox.replies |= replies

    answer = notified(mail_config(mailbox)).answer

    assert error in answer["error"]
    assert answer["retry"] is retry


def test_one_recipient_that_is_refused_does_not_stop_the_others(mailbox: Mailbox) -> None:
    """The log names it; sending again would repeat the mail to the others."""
    mailbox.replies["RCPT a@example.com"] = "550 unknown user"

    answer = notified(mail_config(mailbox)).answer

    assert answer["result"] == "sent over smtp: 1 of 2 recipients"
    assert answer["logs"] == [{"level": "warn", "message": "127.0.0.1 rejected a@example.com: 550 unknown user"}]


def test_a_mail_that_was_taken_is_sent_whatever_comes_after(mailbox: Mailbox) -> None:
    """A bad goodbye is no reason to send it twice."""
    mailbox.replies["QUIT"] = "500 what?"

    assert notified(mail_config(mailbox)).answer["status"] == "ok"


@pytest.mark.parametrize("mistake", [{"host": "a..b"}, {"to": "c@example.com\nBcc: d@example.com"}])
def test_a_mail_that_cannot_be_addressed_is_a_mistake_in_the_configuration(mailbox: Mailbox, mistake: Any) -> None:
    """Trying again would not help."""
    assert notified(mail_config(mailbox, **mistake)).code == 78
    assert mailbox.mails == []


def test_a_mail_server_that_hangs_costs_a_bounded_time() -> None:
    """From the first word on."""
    with sending(lambda over: [b""] if over.wait() else []) as url:
        port = int(url.rpartition(":")[2].strip("/"))
        answer = notified(mail_config(Mailbox(port=port), timeout_seconds=0.5)).answer

    assert answer["retry"] is True
    assert "0.5 s" in answer["error"] or "timed out" in answer["error"]


def test_a_password_goes_over_tls_that_is_verified(tmp_path: Path) -> None:
    """STARTTLS with a foreign certificate ends before the login."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with receiving(context) as mailbox:
        more = {"host": "localhost", "security": "starttls", "username": "u", "password": "p"}
        config = mail_config(mailbox, **more)
        foreign = notified(config)
        verbs = list(mailbox.verbs)
        trusted = ask("notify", "handle", config=config, payload=SAYS, environ={"SSL_CERT_FILE": str(certificate)})

    assert "CERTIFICATE_VERIFY_FAILED" in foreign.answer["error"]
    assert "AUTH" not in verbs
    assert trusted.answer["status"] == "ok", trusted
    assert "AUTH" in mailbox.verbs


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
def test_a_command_that_fails_is_a_failure(command: list[str], code: int, retry: bool, error: str) -> None:
    """Its exit code decides, 78 says that trying again would not help."""
    outcome = notified({"channel": "command", "command": command, "timeout_seconds": 0.5 if "sleep" in command else 30})

    assert (outcome.code, outcome.answer["retry"]) == (code, retry)
    assert error in outcome.answer["error"]


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
def test_a_configuration_that_cannot_be_meant_ends_with_78(config: dict[str, Any], error: str) -> None:
    """`health` finds it and sends nothing."""
    outcome = ask("notify", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.answer["error"]


@pytest.mark.parametrize("options", [("-S",), ("-I",)])
def test_it_runs_with_nothing_but_the_standard_library(options: tuple[str, ...]) -> None:
    """Isolated, and without site-packages."""
    config = {"channel": "webhook", "url": "https://example.com/"}
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": config, "state": {}}

    assert said("notify", json.dumps(request).encode(), options=options).answer["status"] == "ok"
