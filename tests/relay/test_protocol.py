"""The relay protocol: signatures, envelopes and replies."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ductile.core.secret import Secret
from ductile.relay.protocol import (
    Envelope,
    EnvelopeInvalid,
    Origin,
    Reply,
    decode,
    encode,
    is_signed,
    parse_timestamp,
    read_error,
    read_reply,
    signature,
    signed_headers,
)

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
SECRET = Secret("a secret – with more than ASCII")
SIGNED = ("POST", "/ingest/peer/home", "2026-02-08T09:30:00.000000Z", b'{"event": {}}')


@pytest.mark.process
def test_openssl_computes_the_same_signature() -> None:
    """HMAC-SHA256 over method, path, timestamp and body, with a newline after each of the first three."""
    text = b"POST\n/ingest/peer/home\n2026-02-08T09:30:00.000000Z\n" + b'{"event": {}}'
    command = ["openssl", "dgst", "-sha256", "-hmac", SECRET.reveal(), "-r"]
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    assert done.stdout.split()[0].decode() == signature(SECRET, *SIGNED)


@pytest.mark.parametrize("form", ["{}", "sha256={}"])
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_a_signature_is_accepted_in_each_form(form: str, case: Any) -> None:
    """With or without `sha256=`, in lower or upper case."""
    assert is_signed(form.format(case(signature(SECRET, *SIGNED))), SECRET, *SIGNED)


@pytest.mark.parametrize(
    ("method", "path", "moment", "body"),
    [
        ("PUT", *SIGNED[1:]),
        ("POST", "/ingest/peer/other", *SIGNED[2:]),
        (*SIGNED[:2], "2026-02-08T09:30:01.000000Z", SIGNED[3]),
        (*SIGNED[:3], b'{"event": {} }'),
    ],
)
def test_a_signature_covers_method_path_timestamp_and_body(method: str, path: str, moment: str, body: bytes) -> None:
    assert not is_signed(signature(SECRET, *SIGNED), SECRET, method, path, moment, body)


@pytest.mark.parametrize("text", ["", "sha256=", "0" * 64, "sha1=" + "0" * 40, "é" * 64, "sha256=sha256=" + "0" * 57])
def test_an_invalid_signature_is_refused_without_an_error(text: str) -> None:
    assert not is_signed(text, SECRET, *SIGNED)


def test_the_headers_of_a_request_contain_its_signature() -> None:
    """The key id is optional."""
    headers = signed_headers("home", "k1", SECRET, SIGNED[1], SIGNED[3], now=NOW)
    assert headers == {
        "X-Ductile-Peer": "home",
        "X-Ductile-Key-Id": "k1",
        "X-Ductile-Timestamp": SIGNED[2],
        "X-Ductile-Signature": signature(SECRET, *SIGNED),
    }
    assert "X-Ductile-Key-Id" not in signed_headers("home", None, SECRET, SIGNED[1], SIGNED[3], now=NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-08T09:30:00Z", NOW),
        ("2026-02-08T10:30:00+01:00", NOW),
        ("2026-02-08T09:30:00.123456789Z", NOW + timedelta(microseconds=123456)),
        (str(int(NOW.timestamp())), NOW),
        ("2026-02-08", None),
        ("2026-02-08T09:30:00", None),
        ("2026-13-08T09:30:00Z", None),
        ("2026-02-08T::::::::Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("yesterday", None),
        ("-1", None),
        ("9" * 11, datetime.fromtimestamp(99999999999, UTC)),
        ("9" * 12, None),
        ("٣", None),
    ],
)
def test_a_timestamp_is_rfc_3339_or_unix_seconds(text: str, expected: datetime | None) -> None:
    """Anything else is None."""
    assert parse_timestamp(text) == expected


FULL = Envelope(
    type="backup.ready",
    payload={"n": 2**70, "deep": [{"a": None}]},
    dedupe_key="k",
    origin=Origin(instance="home", plugin="backup", job_id="j", event_id="e"),
    baggage={"trace": {"id": 1}},
)


@pytest.mark.parametrize("envelope", [FULL, Envelope(type="x")])
def test_an_envelope_is_decoded_to_the_same_envelope(envelope: Envelope) -> None:
    """Its bytes are always the same, so that the receiver recognises a repetition."""
    assert decode(encode(envelope)) == envelope
    assert encode(decode(encode(envelope))) == encode(envelope)


def test_unknown_members_are_ignored() -> None:
    """Null means absent."""
    body = {"event": {"type": "x", "payload": None, "dedupe_key": None, "new": 1}, "new": 2, "origin": None}
    assert decode(json.dumps(body).encode()) == Envelope(type="x")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b'{"event": {"type": "x", "type": "y"}}', "the body is not JSON"),
        (b'{"event": {"type": "x", "payload": ' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}}", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"{}", "event is missing"),
        (b'{"event": {}}', "event is missing"),
        (b'{"event": "x"}', "event must be a JSON object"),
        (b'{"event": {"payload": {}}}', "event.type must be lower-case words"),
        (b'{"event": {"type": 1}}', "event.type must be text"),
        (b'{"event": {"type": "A B"}}', "event.type must be lower-case words"),
        (b'{"event": {"type": "ductile.step.succeeded"}}', "event.type: types that begin with `ductile.`"),
        (b'{"event": {"type": "x", "payload": []}}', "event.payload must be a JSON object"),
        (b'{"event": {"type": "x", "dedupe_key": 7}}', "event.dedupe_key must be text"),
        (b'{"event": {"type": "x", "dedupe_key": "' + b"k" * 513 + b'"}}', "event.dedupe_key is longer than 512"),
        ('{"event": {"type": "x", "dedupe_key": "' + "é" * 300 + '"}}', "event.dedupe_key is longer than 512 bytes"),
        (b'{"event": {"type": "x"}, "origin": []}', "origin must be a JSON object"),
        (b'{"event": {"type": "x"}, "origin": {"event_id": 1}}', "origin.event_id must be text"),
        (b'{"event": {"type": "x"}, "origin": {"plugin": "' + b"p" * 257 + b'"}}', "origin.plugin is longer than 256"),
        (b'{"event": {"type": "x"}, "baggage": "b"}', "baggage must be a JSON object"),
    ],
)
def test_an_invalid_envelope_is_refused_with_the_reason(body: bytes | str, reason: str) -> None:
    with pytest.raises(EnvelopeInvalid, match=f"^{reason}"):
        decode(body if isinstance(body, bytes) else body.encode())


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (
            {"status": "accepted", "peer": "home", "event_type": "x", "receiver_event_id": "e", "job_id": "j"},
            Reply(receiver_event_id="e", peer="home", job_id="j"),
        ),
        (
            {"status": "accepted", "accepted": False, "reason": "no_route", "receiver_event_id": "e"},
            Reply(receiver_event_id="e", accepted=False, reason="no_route"),
        ),
        ({"status": "ok"}, None),
        ([], None),
        ("accepted", None),
    ],
)
def test_only_a_reply_of_ductile_counts_as_delivered(body: Any, reply: Reply | None) -> None:
    """A 200 from a proxy does not."""
    assert read_reply(json.dumps(body).encode()) == reply


def test_a_body_that_is_not_json_is_not_a_reply() -> None:
    assert read_reply(b"<html>ok</html>") is None
    assert read_error(b"<html>no</html>") == ""
    assert read_error(b'{"error": "unknown relay peer"}') == "unknown relay peer"
    assert read_error(b'{"error": 1}') == read_error(b"[]") == ""
