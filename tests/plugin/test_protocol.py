"""Requests to plugins are encoded, and any output of a plugin is decoded or refused."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ductile.plugin.protocol import (
    EmittedEvent,
    InvalidResponse,
    LogLevel,
    LogLine,
    PluginResponse,
    ProtocolLimits,
    RequestEvent,
    decode_response,
    encode_request,
)

DEADLINE = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def request(**changes: Any) -> Any:
    value: dict[str, Any] = {
        "job_id": "a-job",
        "command": "poll",
        "deadline_at": DEADLINE,
        "attempt": 1,
        "max_attempts": 4,
    }
    return json.loads(encode_request(**{**value, **changes}))


def decode(content: Any, limits: ProtocolLimits | None = None) -> PluginResponse | InvalidResponse:
    return decode_response(json.dumps(content).encode(), limits or ProtocolLimits())


def accepted(limits: ProtocolLimits | None = None, **content: Any) -> PluginResponse:
    response = decode({"status": "ok", "result": "done", **content}, limits)
    assert isinstance(response, PluginResponse), response
    return response


def refused(limits: ProtocolLimits | None = None, **content: Any) -> InvalidResponse:
    response = decode({"status": "ok", "result": "done", **content}, limits)
    assert isinstance(response, InvalidResponse), response
    return response


# Requests


def test_a_request_always_has_the_required_fields() -> None:
    assert request() == {
        "protocol": 2,
        "job_id": "a-job",
        "command": "poll",
        "attempt": 1,
        "max_attempts": 4,
        "config": {},
        "state": {},
        "deadline_at": "2026-02-08T09:30:00.000000Z",
    }


def test_a_handle_request_contains_its_event() -> None:
    """Headers only if a webhook forwarded some."""
    event = RequestEvent(
        type="a.b",
        event_id="e1",
        source="mail",
        timestamp=DEADLINE,
        payload={"x": 1},
        dedupe_key="k",
        headers={"H": "v"},
    )
    assert request(command="handle", event=event)["event"] == {
        "type": "a.b",
        "payload": {"x": 1},
        "dedupe_key": "k",
        "source": "mail",
        "timestamp": "2026-02-08T09:30:00.000000Z",
        "event_id": "e1",
        "headers": {"H": "v"},
    }
    assert request(event='{"type":"a.b"}')["event"] == {"type": "a.b"}
    bare = RequestEvent(type="a.b", event_id="e1", source="mail", timestamp=DEADLINE)
    assert set(request(event=bare)["event"]) == {"type", "payload", "source", "timestamp", "event_id"}


@pytest.mark.parametrize("empty", [None, {}, "{}", " {} "])
def test_an_empty_context_is_omitted(empty: Any) -> None:
    """A payload is included whenever the job has one, even an empty one."""
    assert "context" not in request(context=empty)
    assert request(payload={})["payload"] == {}
    assert "payload" not in request()


def test_encoded_objects_are_passed_through_without_parsing() -> None:
    text = '{"n":1e400,"deep":' + "[" * 500 + "]" * 500 + "}"
    encoded = encode_request(
        job_id="j", command="poll", deadline_at=DEADLINE, attempt=1, max_attempts=1, payload=text, state=text
    )
    assert encoded.count(text.encode()) == 2


def test_a_request_is_always_one_line() -> None:
    encoded = encode_request(
        job_id="a\nb",
        command="poll",
        deadline_at=DEADLINE,
        attempt=1,
        max_attempts=1,
        config={"text": "one\ntwo\r\u2028"},
        payload='{\r\n  "a": "x\\ny"\n}\n',
    )
    assert (encoded.count(b"\n"), encoded.count(b"\r"), encoded.endswith(b"}\n")) == (1, 0, True)
    assert json.loads(encoded)["payload"] == {"a": "x\ny"}


def test_large_integers_reach_the_plugin_exactly() -> None:
    assert request(state={"n": 2**64 + 1, "m": -(10**400)})["state"] == {"n": 2**64 + 1, "m": -(10**400)}


# Valid responses


def test_a_response_needs_only_a_status_and_a_result_or_error() -> None:
    assert decode({"status": "ok", "result": "done"}) == PluginResponse(ok=True, result="done")
    assert decode({"status": "error", "error": "no"}) == PluginResponse(ok=False, error="no")


def test_every_documented_field_of_a_response_is_read() -> None:
    response = accepted(
        events=[{"type": "a.b", "payload": {"x": [1, None]}, "dedupe_key": "k"}, {"type": "c"}],
        state_updates={"cursor": 2**70, "name": "ü"},
        logs=[{"level": "warn", "message": "careful"}],
        retry=False,
        retry_after=1.5,
    )
    assert response == PluginResponse(
        ok=True,
        result="done",
        retry=False,
        retry_after=timedelta(seconds=1.5),
        events=(EmittedEvent("a.b", {"x": [1, None]}, "k"), EmittedEvent("c", {})),
        state_updates={"cursor": 2**70, "name": "ü"},
        state_json='{"cursor":1180591620717411303424,"name":"ü"}',
        logs=(LogLine(LogLevel.WARN, "careful"),),
    )


@pytest.mark.parametrize("around", [b"%b\n", b"%b\r\n", b"  %b \t\n\n", b"\n\n%b"])
def test_whitespace_around_the_response_is_ignored(around: bytes) -> None:
    assert isinstance(decode_response(around % b'{"status":"ok","result":"x"}'), PluginResponse)


def test_null_means_absent() -> None:
    nothing = dict.fromkeys(("error", "retry", "retry_after", "events", "state_updates", "logs"))
    assert accepted(**nothing) == accepted()
    assert accepted(events=[{"type": "a", "payload": None, "dedupe_key": None}]).events == (EmittedEvent("a", {}),)


def test_unknown_keys_are_ignored() -> None:
    """A plugin may be newer than the core."""
    assert accepted(ductile_stopwatch_subs=[1], other={"status": "error"}) == accepted()


def test_a_plugin_cannot_set_id_source_or_time_of_an_event() -> None:
    spoofed = {"type": "a", "event_id": "forged", "source": "bank", "timestamp": "2000-01-01T00:00:00Z", "headers": {}}
    assert accepted(events=[spoofed]).events == (EmittedEvent("a", {}),)


@pytest.mark.parametrize("key", ["", "  ", "\n"])
def test_a_blank_dedupe_key_is_none(key: str) -> None:
    """An unset variable in a template must not make all events duplicates."""
    assert accepted(events=[{"type": "a", "dedupe_key": key}]).events[0].dedupe_key is None


def test_empty_state_updates_are_ignored() -> None:
    """Many plugins always print `{}`; it must not clear the state."""
    assert (accepted(state_updates={}).state_updates, accepted(state_updates={}).state_json) == (None, None)


def test_nul_is_kept_and_lone_surrogates_are_replaced() -> None:
    """A note reports the replacement."""
    response = decode_response(
        b'{"status":"ok","result":"a\\u0000b","events":[{"type":"x","payload":{"k":"\\ud800"}}]}'
    )
    assert isinstance(response, PluginResponse)
    assert response.result == "a\0b"
    assert response.events[0].payload == {"k": "\N{REPLACEMENT CHARACTER}"}
    assert response.notes == ("lone surrogates in the response were replaced by U+FFFD: 1",)


@pytest.mark.parametrize(
    ("value", "seconds"), [(0, 0), (0.25, 0.25), (3600, 3600), (3601, 3600), (10**400, 3600), (1e300, 3600)]
)
def test_retry_after_is_honoured_up_to_an_hour(value: float, seconds: float) -> None:
    assert accepted(retry_after=value).retry_after == timedelta(seconds=seconds)


# Invalid responses


NOT_ONE_OBJECT = [
    (b"", "no output on stdout"),
    (b" \r\n\t ", "no output on stdout"),
    (b"\x80\x81random\xff", "not one JSON object"),
    (b'starting up\n{"status":"ok","result":"x"}', "not one JSON object"),
    (b'{"status":"ok","result":"x"}\nbye', "not one JSON object"),
    (b'{"status":"ok","result":"x"}\n{"status":"ok","result":"x"}', "not one JSON object"),
    (b'{"status":"ok","result":"x"', "not one JSON object"),
    (b"[]", "must be one JSON object, not a list"),
    (b'"ok"', "must be one JSON object, not the text 'ok'"),
    (b"7", "must be one JSON object, not the number 7"),
    (b"9" * 400, "must be one JSON object, not a number"),
    (b"null", "must be one JSON object, not null"),
    (b"true", "must be one JSON object, not true"),
    (b'\xef\xbb\xbf{"status":"ok","result":"x"}', "not one JSON object"),
    ('{"status":"ok","result":"x"}'.encode("utf-16"), "not one JSON object"),
    ('{"status":"ok","result":"x"}'.encode("utf-32"), "not one JSON object"),
    (b"\x1f\x8b\x08\x00\x00", "not one JSON object"),
    (b'{"status":"ok","result":"\xff"}', "not one JSON object"),
    (b'{"status":"ok","result":"x","a":NaN}', "not one JSON object"),
    (b'{"status":"ok","result":"x","a":-Infinity}', "not one JSON object"),
    (b'{"status":"ok","result":"x","a":1e999}', "not one JSON object"),
    (b'{"status":"ok","result":"x","a":' + b"9" * 4301 + b"}", "not one JSON object"),
    (b'{"status":"ok","result":"x","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not one JSON object"),
    (b'{"status":"ok","result":"x","a":' + b"[" * 64 + b"]" * 64 + b"}", "not one JSON object"),
    (b'{"status":"ok","status":"ok","result":"x"}', "not one JSON object"),
    (b"{}", "status must be 'ok' or 'error', not missing"),
]


def test_output_that_is_not_one_json_object_is_a_protocol_error() -> None:
    """It may be retried."""
    failures = []
    for stdout, reason in NOT_ONE_OBJECT:
        response = decode_response(stdout)
        assert isinstance(response, InvalidResponse), stdout[:80]
        if reason not in response.reason or response.final or len(response.reason) >= 300:
            failures.append(f"{stdout[:80]!r}: {response}")
    assert failures == []


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"status": "OK"}, "status must be 'ok' or 'error', not the text 'OK'"),
    ({"status": True}, "status must be 'ok' or 'error', not true"),
    ({"status": None}, "status must be 'ok' or 'error', not null"),
    ({"status": ["ok"]}, "status must be 'ok' or 'error', not a list"),
    ({"result": None}, "status is 'ok' but result is missing or blank"),
    ({"result": " \n"}, "status is 'ok' but result is missing or blank"),
    ({"result": 5}, "result must be text, not the number 5"),
    ({"result": {"a": 1}}, "result must be text, not an object"),
    ({"error": 5}, "error must be text, not the number 5"),
    ({"status": "error"}, "status is 'error' but error is missing or blank"),
    ({"status": "error", "error": ""}, "status is 'error' but error is missing or blank"),
    ({"status": "error", "error": " "}, "status is 'error' but error is missing or blank"),
    ({"status": "error", "error": ["no"]}, "error must be text, not a list"),
    ({"retry": "false"}, "retry must be true or false, not the text 'false'"),
    ({"retry": 0}, "retry must be true or false, not the number 0"),
    ({"retry_after": -1}, "retry_after must be a number of seconds from 0 up, not the number -1"),
    ({"retry_after": "30s"}, "retry_after must be a number of seconds"),
    ({"retry_after": True}, "retry_after must be a number of seconds"),
    ({"events": {"type": "a"}}, "events must be a list, not an object"),
    ({"events": "a"}, "events must be a list, not the text 'a'"),
    ({"events": [None]}, "events[0] must be an object with type and payload, not null"),
    ({"events": [{"type": "a"}, "b"]}, "events[1] must be an object with type and payload"),
    ({"events": [{}]}, "events[0].type must be text that is not blank, not missing"),
    ({"events": [{"type": 5}]}, "events[0].type must be text that is not blank, not the number 5"),
    ({"events": [{"type": ""}]}, "events[0].type must be text that is not blank"),
    ({"events": [{"type": " "}]}, "events[0].type must be text that is not blank"),
    ({"events": [{"type": None}]}, "events[0].type must be text that is not blank, not null"),
    ({"events": [{"type": "a", "payload": []}]}, "events[0].payload must be an object, not a list"),
    ({"events": [{"type": "a", "payload": "x"}]}, "events[0].payload must be an object, not the text 'x'"),
    ({"events": [{"type": "a", "dedupe_key": 5}]}, "events[0].dedupe_key must be text, not the number 5"),
    ({"events": [{"type": "a", "dedupe_key": "ü" * 257}]}, "events[0].dedupe_key is longer than 512 bytes"),
    ({"state_updates": []}, "state_updates must be an object, not a list"),
    ({"state_updates": "x"}, "state_updates must be an object, not the text 'x'"),
    ({"Events": []}, "the key 'Events' must be written 'events'"),
    ({"State_Updates": {}}, "the key 'State_Updates' must be written 'state_updates'"),
]


def test_a_wrong_value_is_a_protocol_error_that_names_it() -> None:
    failures = []
    for content, reason in WRONG_VALUES:
        response = refused(**content)
        if reason not in response.reason or response.final:
            failures.append(f"{content}: {response}")
    assert failures == []


def test_a_key_in_the_wrong_case_is_an_error() -> None:
    """Unless the correct key is present as well."""
    response = decode_response(b'{"Status":"ok","result":"x"}')
    assert response == InvalidResponse("the key 'Status' must be written 'status'")
    assert accepted(Status="whatever") == accepted()


# Limits


def test_a_dedupe_key_may_have_512_bytes() -> None:
    """Bytes, not characters."""
    assert accepted(events=[{"type": "a", "dedupe_key": "ü" * 256}]).events[0].dedupe_key == "ü" * 256


def test_a_thousand_events_are_accepted_and_one_more_is_final() -> None:
    """A retry would exceed the limit again."""
    assert len(accepted(events=[{"type": "a"}] * 1000).events) == 1000
    response = refused(events=[{"type": "a"}] * 1001)
    assert response == InvalidResponse("1001 events, more than the 1000 allowed", True, "service.limits.events")


def test_a_state_of_a_mebibyte_is_accepted_and_one_more_byte_is_final() -> None:
    """Measured as compact JSON in UTF-8."""
    frame = len('{"k":""}')
    largest = accepted(state_updates={"k": "x" * ((1 << 20) - frame)})
    assert largest.state_json is not None
    assert len(largest.state_json.encode()) == 1 << 20
    response = refused(state_updates={"k": "x" * ((1 << 20) - frame + 1)})
    assert response == InvalidResponse(
        "state_updates has 1048577 bytes, more than the 1048576 allowed", True, "service.limits.state"
    )
    assert accepted(state_updates={"k": "ü" * ((1 << 19) - frame)}).state_json is not None


def test_an_output_of_ten_mebibytes_is_accepted_and_one_more_byte_is_not() -> None:
    frame = len('{"status":"ok","result":"x","events":[{"type":"a","payload":{"k":""}}]}')
    fits = b"x" * ((10 << 20) - frame)
    text = b'{"status":"ok","result":"x","events":[{"type":"a","payload":{"k":"%b"}}]}'
    assert isinstance(decode_response(text % fits), PluginResponse)
    response = decode_response(text % (fits + b"x"))
    assert isinstance(response, InvalidResponse)
    assert (response.reason, response.final) == ("output limit: stdout is longer than 10485760 bytes", False)


def test_a_nesting_of_64_is_accepted() -> None:
    """Including the envelope itself."""
    text = b'{"status":"ok","result":"x","a":' + b"[" * 63 + b"]" * 63 + b"}"
    assert isinstance(decode_response(text), PluginResponse)


def test_limits_can_be_set() -> None:
    assert refused(ProtocolLimits(events=1), events=[{"type": "a"}] * 2).final
    assert refused(ProtocolLimits(state_bytes=5), state_updates={"a": 1}).final
    assert not refused(ProtocolLimits(dedupe_key_bytes=1), events=[{"type": "a", "dedupe_key": "ab"}]).final
    assert not refused(ProtocolLimits(stdout_bytes=5)).final


# Logs


@pytest.mark.parametrize(
    ("level", "read_as"),
    [
        ("debug", LogLevel.DEBUG),
        ("INFO", LogLevel.INFO),
        ("warn", LogLevel.WARN),
        ("Warning", LogLevel.WARN),
        ("error", LogLevel.ERROR),
        ("fatal", LogLevel.ERROR),
        ("shout", LogLevel.INFO),
        (5, LogLevel.INFO),
        (None, LogLevel.INFO),
    ],
)
def test_a_log_level_is_read_leniently(level: Any, read_as: LogLevel) -> None:
    """A log line never fails a job."""
    assert accepted(logs=[{"level": level, "message": "m"}]).logs == (LogLine(read_as, "m"),)


def test_invalid_log_entries_become_text() -> None:
    logs = accepted(logs=["plain", 5, None, {"message": {"a": 1}}, {}, ["x"]]).logs
    assert [line.message for line in logs] == ["plain", "5", "null", '{"a":1}', "", '["x"]']
    assert accepted(logs={"level": "info"}).logs == (
        LogLine(LogLevel.WARN, "logs ignored: must be a list, not an object"),
    )


def test_the_number_of_log_lines_is_limited() -> None:
    """A last line has the number of dropped lines."""
    logs = accepted(logs=[{"level": "info", "message": "m"}] * 100_000).logs
    assert len(logs) == 1001
    assert logs[-1] == LogLine(LogLevel.WARN, "99000 more log lines dropped: more than 1000 lines or 262144 bytes")


def test_the_bytes_of_log_lines_are_limited() -> None:
    """A message is truncated between characters, and dropped lines are counted."""
    logs = accepted(ProtocolLimits(log_bytes=9), logs=["1234", "üüüüü", "more", "more"]).logs
    assert [line.message for line in logs] == [
        "1234",
        "üü… [5 more bytes dropped]",
        "2 more log lines dropped: more than 1000 lines or 9 bytes",
    ]
    assert len(accepted(logs=["x" * 5_000_000]).logs[0].message) < 300_000


# Any output

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
responses = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["ok", "error"]) | json_values,
        "result": st.text() | json_values,
        "error": st.text() | json_values,
        "retry": st.booleans() | json_values,
        "retry_after": st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_values,
        "events": json_values
        | st.lists(
            st.fixed_dictionaries(
                {}, optional={key: st.text() | json_values for key in ("type", "payload", "dedupe_key", "event_id")}
            ),
            max_size=3,
        ),
        "state_updates": json_values | st.dictionaries(st.text(), json_values, max_size=3),
        "logs": json_values
        | st.lists(st.fixed_dictionaries({}, optional={"level": json_values, "message": json_values}), max_size=3),
    },
)


@settings(deadline=None)
@given(st.binary())
@example(b"\xed\xa0\x80")
@example(b'"\\ud800"')
def test_decoding_never_raises(stdout: bytes) -> None:
    assert isinstance(decode_response(stdout), InvalidResponse)


@settings(deadline=None)
@given(json_values | responses)
def test_any_json_gives_a_result_that_can_be_stored(content: Any) -> None:
    response = decode(content, ProtocolLimits(events=2, state_bytes=64, log_lines=2, log_bytes=32))
    if isinstance(response, InvalidResponse):
        assert 0 < len(response.reason.encode()) < 600
        return
    assert (response.result if response.ok else response.error).strip()
    assert len(response.events) <= 2
    assert all(event.type.strip() and isinstance(event.payload, dict) for event in response.events)
    assert len((response.state_json or "").encode()) <= 64
    for line in response.logs:
        line.message.encode()


@settings(deadline=None)
@given(
    result=st.text(min_size=1).filter(lambda text: bool(text.strip())),
    payload=st.dictionaries(st.text(), json_values, max_size=4),
    state=st.dictionaries(st.text(), json_values, min_size=1, max_size=4),
)
def test_values_of_a_response_are_unchanged(result: str, payload: dict[str, Any], state: dict[str, Any]) -> None:
    response = accepted(result=result, events=[{"type": "a", "payload": payload}], state_updates=state)
    assert (response.result, response.events[0].payload, response.state_updates) == (result, payload, state)
    assert response.state_json is not None
    assert json.loads(response.state_json) == state


@settings(deadline=None)
@given(config=st.dictionaries(st.text(), json_values, max_size=4), text=st.text())
def test_values_of_a_request_are_unchanged(config: dict[str, Any], text: str) -> None:
    """Objects and encoded texts are equivalent."""
    as_object = request(config=config, payload=config, job_id=text)
    as_text = request(config=json.dumps(config), payload=json.dumps(config, indent=2), job_id=text)
    assert as_object == as_text
    assert (as_object["config"], as_object["payload"], as_object["job_id"]) == (config, config, text)
