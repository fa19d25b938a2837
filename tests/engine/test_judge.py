"""The decision table: from a finished process to the outcome of its attempt."""

import errno
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from ductile.core.model import Dead, Failed, Interrupted, Job, Retried, Succeeded
from ductile.core.secret import HIDDEN, Mask
from ductile.core.units import MAX_DURATION
from ductile.engine.judge import MAX_ERROR_CHARS, MAX_OUTPUT_CHARS, RetryPolicy, Verdict, backoff, judge
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.run import Cause, Finished
from ductile.engine.process.start import SpawnFailed
from ductile.explain.sentences import sentence
from ductile.plugin.protocol import ProtocolLimits
from tests.engine.builders import NOW, a_job, a_run

POLICY = RetryPolicy(timeout=timedelta(seconds=2), backoff_base=timedelta(seconds=30))
OK = {"status": "ok", "result": "done"}
SECRET = "hunter2hunter2"


def decide(run: Finished | SpawnFailed, *, job: Job | None = None, policy: RetryPolicy = POLICY) -> Verdict:
    return judge(job or a_job(), run, policy, started_at=NOW, jitter=0.5)


def error(**more: Any) -> dict[str, Any]:
    return {"status": "error", "error": "no luck", **more}


TABLE: list[tuple[str, Finished | SpawnFailed, type, str]] = [
    ("success", a_run(OK), Succeeded, ""),
    ("no output", a_run(b""), Retried, "plugin produced no output on stdout"),
    ("invalid output", a_run(b"hello"), Retried, "stdout is not one JSON object: "),
    ("too many events", a_run({**OK, "events": [{"type": "x"}] * 1001}), Failed, "1001 events, more than the 1000"),
    ("state too large", a_run({**OK, "state_updates": {"x": "y" * (1 << 20)}}), Failed, "state_updates has "),
    ("an error", a_run(error()), Retried, "no luck"),
    ("an error, exit 1", a_run(error(), exit_code=1), Retried, "no luck"),
    ("a final error", a_run(error(retry=False)), Failed, "no luck"),
    ("a final error, exit 1", a_run(error(retry=False), exit_code=1), Failed, "no luck"),
    ("ok, but exit 1", a_run(OK, exit_code=1), Retried, "exit code 1 after a response with status ok"),
    ("ok, but killed", a_run(OK, exit_code=None, signal=9), Retried, "killed by SIGKILL after a response"),
    ("exit 1 without output", a_run(b"", exit_code=1), Retried, "exit code 1; plugin produced no output on stdout"),
    ("killed without output", a_run(b"", exit_code=None, signal=11), Retried, "killed by SIGSEGV; plugin produced no "),
    ("an unknown signal", a_run(b"", exit_code=None, signal=63), Retried, "killed by signal 63; "),
    ("exit 78 without output", a_run(b"", exit_code=78), Failed, "exit code 78; plugin produced no output on stdout"),
    ("ok, but exit 78", a_run(OK, exit_code=78), Failed, "exit code 78 after a response with status ok"),
    ("exit 78 overrides retry", a_run(error(retry=True), exit_code=78), Failed, "exit code 78: no luck"),
    ("exit 78 with invalid output", a_run(b"{", exit_code=78), Failed, "exit code 78; stdout is not one JSON object: "),
    ("the deadline", a_run(OK, cause=Cause.TIMED_OUT, signal=15), Retried, "timed out after 2s"),
    ("the deadline, then exit 78", a_run(OK, cause=Cause.TIMED_OUT, exit_code=78), Retried, "timed out after 2s"),
    ("too much output", a_run(OK, cause=Cause.OUTPUT_LIMIT), Retried, "output limit: more than 10485760 bytes"),
    ("the drain", a_run(OK, cause=Cause.STOPPED, stopped="drain"), Interrupted, "the service was stopping"),
    ("cancelled by an operator", a_run(OK, cause=Cause.STOPPED, stopped="by ann"), Dead, "cancelled: by ann"),
    ("not started", SpawnFailed("run: not there", errno.ENOENT), Retried, "cannot start: run: not there"),
]


def test_every_kind_of_run_has_its_outcome() -> None:
    """A timeout and an output limit override the response."""
    failures = []
    for name, run, kind, start in TABLE:
        outcome = decide(run).outcome
        message: str = getattr(outcome, "reason", "") or getattr(outcome, "error", "")
        if type(outcome) is not kind or not message.startswith(start) or (start == "") != (message == ""):
            failures.append(f"{name}: {outcome}")
    assert failures == []


def test_the_last_attempt_is_never_retried() -> None:
    """It is dead if it would be retried. Final and interrupted outcomes stay the same."""
    failures = []
    for name, run, kind, _ in TABLE:
        outcome = decide(run, job=a_job(attempt=4)).outcome
        is_expected = type(outcome) is (Dead if kind is Retried else kind)
        if kind is Retried and isinstance(outcome, Dead):
            is_expected = outcome.error.startswith("attempts used up (4 of 4): ")
        if not is_expected:
            failures.append(f"{name}: {outcome}")
    assert failures == []


def test_interrupted_attempts_do_not_count() -> None:
    """A job that the drain interrupted twice still has all its attempts."""
    outcome = decide(a_run(b""), job=a_job(attempt=5, interruptions=2)).outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=30 * 4 + 15)


@pytest.mark.parametrize("run", [a_run(OK, cause=Cause.TIMED_OUT), a_run(OK, cause=Cause.OUTPUT_LIMIT)])
def test_the_response_of_a_run_that_was_ended_early_does_not_count(run: Finished) -> None:
    """It is stored for diagnosis only."""
    verdict = decide(run)
    assert verdict.response is None
    assert isinstance(verdict.outcome, Retried)
    assert verdict.outcome.evidence
    assert verdict.outcome.evidence.result == '{"status": "ok", "result": "done"}'


def test_ignore_exit_code_accepts_an_ok_response() -> None:
    """But not after a signal and not with exit code 78."""
    ignoring = RetryPolicy(timeout=timedelta(seconds=2), ignore_exit_code=True)
    assert isinstance(decide(a_run(OK, exit_code=1), policy=ignoring).outcome, Succeeded)
    assert isinstance(decide(a_run(OK, exit_code=None, signal=9), policy=ignoring).outcome, Retried)
    assert isinstance(decide(a_run(OK, exit_code=78), policy=ignoring).outcome, Failed)


# --- retry delay ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tries", "seconds"), [(1, 30), (2, 60), (3, 120), (4, 240)])
def test_the_delay_doubles_and_is_spread_by_one_base(tries: int, seconds: float) -> None:
    """base * 2^(attempt-1) + jitter * base."""
    base = timedelta(seconds=30)
    assert backoff(base, tries, 0.0) == timedelta(seconds=seconds)
    assert backoff(base, tries, 0.999).total_seconds() == pytest.approx(seconds + 30, abs=0.1)


@pytest.mark.parametrize("tries", [9, 50, 10_000])
def test_the_delay_is_at_most_one_hour(tries: int) -> None:
    """Also after many attempts, without overflow."""
    assert backoff(timedelta(seconds=30), tries, 0.5) == timedelta(hours=1)


@pytest.mark.parametrize("tries", [1, 2, 3, 21, 10_000])
def test_the_delay_of_a_long_base_is_at_most_twice_the_base(tries: int) -> None:
    """Even for the longest base, without overflow."""
    assert backoff(MAX_DURATION, tries, 0.0) == MAX_DURATION * min(tries, 2)
    assert backoff(MAX_DURATION, tries, 0.999) <= 2 * MAX_DURATION


def test_a_base_of_zero_means_no_delay() -> None:
    assert backoff(timedelta(), 3, 0.9) == timedelta()


@pytest.mark.parametrize(("retry_after", "expected"), [(0, 0), (2.5, 2.5), (3600, 3600), (10**400, 3600)])
def test_a_plugin_can_set_the_retry_delay(retry_after: float, expected: float) -> None:
    """`retry_after` replaces the backoff, up to one hour."""
    outcome = decide(a_run(error(retry_after=retry_after))).outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=expected)


# --- stored evidence --------------------------------------------------------------------------------------------------


def _evidence(run: Finished, policy: RetryPolicy = POLICY) -> Any:
    outcome = decide(run, policy=policy).outcome
    return outcome.evidence  # type: ignore[union-attr]


def test_a_valid_response_is_stored_as_the_plugin_wrote_it() -> None:
    """Byte for byte, including whitespace, whatever its length."""
    text = '{"status":"ok",\r\n "result":"' + "é" * MAX_OUTPUT_CHARS + '"}\n'
    assert _evidence(a_run(text.encode())).result == text


def test_a_valid_response_is_in_memory_once() -> None:
    """It can have megabytes, so the stored text is the decoded text."""
    verdict = decide(a_run(OK))
    assert isinstance(verdict.outcome, Succeeded)
    assert verdict.response
    assert verdict.outcome.evidence.result is verdict.response.text


def test_a_response_with_a_lone_surrogate_is_stored_corrected() -> None:
    """Every JSON parser can read the stored response."""
    assert (
        _evidence(a_run(b'{"status":"ok","result":"half \\ud800"}')).result == '{"status":"ok","result":"half \ufffd"}'
    )


def test_the_beginning_of_invalid_output_is_stored() -> None:
    """A note has the total size."""
    stored = _evidence(a_run(b"x" * 200_000)).result
    assert stored == "x" * MAX_OUTPUT_CHARS + "\n[cut; 200000 bytes in all]"
    assert _evidence(a_run(b"caf\xe9 \x00")).result == "caf\\xe9 \x00"
    assert _evidence(a_run(b"")).result is None


def test_the_end_of_stderr_is_stored_with_a_note() -> None:
    """The note has the size of the missing part."""
    assert _evidence(a_run(OK, stderr=b"last lines\n", stderr_total=100)).stderr == "[89 bytes cut]\nlast lines\n"
    assert _evidence(a_run(OK, stderr=b"caf\xe9\n")).stderr == "caf\\xe9\n"
    assert _evidence(a_run(OK)).stderr is None


def test_the_exit_of_the_process_is_stored() -> None:
    """With start time, duration, exit code, signal and timeout."""
    stored = _evidence(a_run(b"", exit_code=None, signal=15, cause=Cause.TIMED_OUT))
    assert (stored.started_at, stored.duration) == (NOW, timedelta(seconds=1.5))
    assert (stored.exit_code, stored.signal, stored.timed_out) == (None, 15, True)


def test_a_failure_without_a_response_quotes_the_last_line_of_stderr() -> None:
    """Long lines and errors are truncated."""
    outcome = decide(a_run(b"", exit_code=1, stderr=b"Traceback:\nValueError: no\n\n")).outcome
    assert isinstance(outcome, Retried)
    assert outcome.error == "exit code 1; plugin produced no output on stdout; stderr: ValueError: no"
    long = decide(a_run(error(error="x" * 100_000))).outcome
    assert isinstance(long, Retried)
    assert len(long.error) == MAX_ERROR_CHARS


# --- secrets ----------------------------------------------------------------------------------------------------------

MASKING = RetryPolicy(timeout=timedelta(seconds=2), mask=Mask([SECRET]), limits=ProtocolLimits())


@pytest.mark.parametrize(
    "run",
    [
        a_run(b"", exit_code=1, stderr=f"token {SECRET}\n".encode()),
        a_run(error(error=f"login {SECRET} failed")),
        a_run(f"Traceback {SECRET}".encode()),
        # The truncation cuts the secret, so the rest of it would not be recognised.
        a_run(b"", exit_code=1, stderr=b"x" * 295 + SECRET.encode()),
        a_run(error(error="x" * (MAX_ERROR_CHARS - 5) + SECRET)),
        a_run(b"x" * (MAX_OUTPUT_CHARS - 5) + SECRET.encode()),
    ],
    ids=["stderr", "error", "output", "cut stderr", "cut error", "cut output"],
)
def test_errors_and_stored_texts_contain_no_known_secret(run: Finished) -> None:
    """Not even a part of one. Only a valid response is stored unchanged."""
    outcome = decide(run, policy=MASKING).outcome
    assert isinstance(outcome, Retried)
    assert outcome.evidence
    stored = (outcome.error, outcome.evidence.stderr or "", outcome.evidence.result or "")
    has_response = run.stdout.startswith(b'{"status"')
    for text in stored[:2] if has_response else stored:
        assert SECRET[:5] not in text


def test_a_secret_at_the_beginning_of_truncated_stderr_is_masked() -> None:
    """In the stored stderr and in the error."""
    rest = SECRET[3:]
    run = a_run(b"", exit_code=1, stderr=rest.encode(), stderr_total=1_000_000)
    outcome = decide(run, policy=MASKING).outcome
    assert isinstance(outcome, Retried)
    assert outcome.evidence
    assert rest not in outcome.error
    assert outcome.evidence.stderr == f"[{1_000_000 - len(rest)} bytes cut]\n{HIDDEN}"


def test_a_valid_response_is_not_masked() -> None:
    """Masking would corrupt its data."""
    result = _evidence(a_run({"status": "ok", "result": SECRET}), MASKING).result
    assert SECRET in result


def test_every_outcome_that_a_limit_causes_names_its_key() -> None:
    """In its data and in its sentence, for the last attempt and for a final failure. Other failures name none."""
    limited = evolve(
        POLICY,
        limits=ProtocolLimits(dedupe_key_bytes=1),
        resources=ResourceLimits(address_space=1, cpu_seconds=1, file_size=1),
    )
    job = a_job(attempt=4)
    cases = {
        f"plugins.{job.plugin}.timeouts.{job.command}": a_run(OK, cause=Cause.TIMED_OUT, signal=15),
        "service.limits.stdout": a_run(OK, cause=Cause.OUTPUT_LIMIT),
        "service.limits.events": a_run({**OK, "events": [{"type": "x"}] * 1001}),
        "service.limits.state": a_run({**OK, "state_updates": {"x": "y" * (1 << 20)}}),
        "service.limits.dedupe_key": a_run({**OK, "events": [{"type": "x", "dedupe_key": "long"}]}),
        f"plugins.{job.plugin}.limits.cpu": a_run(exit_code=None, signal=24),
        f"plugins.{job.plugin}.limits.file_size": a_run(exit_code=None, signal=25),
        f"plugins.{job.plugin}.limits.memory": a_run(exit_code=1, stderr=b"Traceback\nMemoryError\n"),
        None: a_run(error(retry=False)),
    }
    found = {}
    for key, run in cases.items():
        outcome = decide(run, job=job, policy=limited).outcome
        assert isinstance(outcome, Failed | Dead)
        words = sentence(outcome.code, {"error": outcome.error, **outcome.data})
        found[key] = (outcome.data.get("limit_key"), str(key) in words)
    assert found == {key: (key, key is not None) for key in cases}


def test_a_resource_that_has_no_limit_is_not_blamed() -> None:
    """A plugin that runs out of memory on its own fails without a key."""
    outcome = decide(a_run(exit_code=1, stderr=b"MemoryError\n"), job=a_job(attempt=4)).outcome
    assert "limit_key" not in outcome.data  # type: ignore[union-attr]
