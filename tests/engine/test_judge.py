"""The decision table: what a finished process means for its job."""

import errno
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Dead, Failed, Interrupted, Job, Retried, Succeeded
from ductile.core.secret import HIDDEN, Mask
from ductile.core.units import LONGEST
from ductile.engine.judge import LONGEST_ERROR, LONGEST_OUTPUT, RetryPolicy, Verdict, backoff, judge
from ductile.engine.process.run import Cause, Finished
from ductile.engine.process.start import SpawnFailed
from ductile.plugin.protocol import ProtocolLimits
from tests.engine.builders import NOW, a_job, a_run

POLICY = RetryPolicy(timeout=timedelta(seconds=2), backoff_base=timedelta(seconds=30))
OK = {"status": "ok", "result": "done"}
SECRET = "hunter2hunter2"


def decide(run: Finished | SpawnFailed, *, job: Job | None = None, policy: RetryPolicy = POLICY) -> Verdict:
    return judge(job or a_job(), run, policy, started_at=NOW, chance=0.5)


def error(**more: Any) -> dict[str, Any]:
    return {"status": "error", "error": "no luck", **more}


TABLE: list[tuple[str, Finished | SpawnFailed, type, str]] = [
    ("all is well", a_run(OK), Succeeded, ""),
    ("no output", a_run(b""), Retried, "plugin produced no output on stdout"),
    ("nonsense", a_run(b"hello"), Retried, "stdout is not one JSON object: "),
    ("too many events", a_run({**OK, "events": [{"type": "x"}] * 1001}), Failed, "1001 events, more than the 1000"),
    ("state too large", a_run({**OK, "state_updates": {"x": "y" * (1 << 20)}}), Failed, "state_updates has "),
    ("an error that may pass", a_run(error()), Retried, "no luck"),
    ("an error that may pass, exit 1", a_run(error(), exit_code=1), Retried, "no luck"),
    ("an error for good", a_run(error(retry=False)), Failed, "no luck"),
    ("an error for good, exit 1", a_run(error(retry=False), exit_code=1), Failed, "no luck"),
    ("ok, but exit 1", a_run(OK, exit_code=1), Retried, "exit code 1 after a response with status ok"),
    ("ok, but killed", a_run(OK, exit_code=None, signal=9), Retried, "killed by SIGKILL after a response"),
    ("exit 1 and silence", a_run(b"", exit_code=1), Retried, "exit code 1; plugin produced no output on stdout"),
    ("killed in silence", a_run(b"", exit_code=None, signal=11), Retried, "killed by SIGSEGV; plugin produced no "),
    ("an unknown signal", a_run(b"", exit_code=None, signal=63), Retried, "killed by signal 63; "),
    ("exit 78 and silence", a_run(b"", exit_code=78), Failed, "exit code 78; plugin produced no output on stdout"),
    ("exit 78, whatever it says", a_run(OK, exit_code=78), Failed, "exit code 78 after a response with status ok"),
    ("exit 78 wins over retry", a_run(error(retry=True), exit_code=78), Failed, "exit code 78: no luck"),
    ("exit 78 and nonsense", a_run(b"{", exit_code=78), Failed, "exit code 78; stdout is not one JSON object: "),
    ("the deadline", a_run(OK, cause=Cause.TIMED_OUT, signal=15), Retried, "timed out after 2s"),
    ("the deadline, then exit 78", a_run(OK, cause=Cause.TIMED_OUT, exit_code=78), Retried, "timed out after 2s"),
    ("too much output", a_run(OK, cause=Cause.OUTPUT_LIMIT), Retried, "output limit: more than 10485760 bytes"),
    ("the drain", a_run(OK, cause=Cause.STOPPED, stopped="drain"), Interrupted, "the service was stopping"),
    ("an operator", a_run(OK, cause=Cause.STOPPED, stopped="by ann"), Dead, "cancelled: by ann"),
    ("not started", SpawnFailed("run: not there", errno.ENOENT), Retried, "cannot start: run: not there"),
]


@pytest.mark.parametrize(("run", "kind", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_a_run_means(run: Finished | SpawnFailed, kind: type, words: str) -> None:
    """One row for each way a run can end; a deadline and a limit come before anything it said."""
    outcome = decide(run).outcome
    assert type(outcome) is kind
    said: str = getattr(outcome, "reason", "") or getattr(outcome, "error", "")
    assert said.startswith(words)
    assert (words == "") == (said == "")


@pytest.mark.parametrize(("run", "kind"), [(row[1], row[2]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_last_attempt_is_never_retried(run: Finished | SpawnFailed, kind: type) -> None:
    """Attempts used up make it dead whatever the cause; what was final or uncounted stays so."""
    outcome = decide(run, job=a_job(attempt=4)).outcome
    assert type(outcome) is (Dead if kind is Retried else kind)
    if kind is Retried:
        assert isinstance(outcome, Dead)
        assert outcome.error.startswith("attempts used up (4 of 4): ")


def test_interrupted_attempts_do_not_count() -> None:
    """A job the drain interrupted twice still has all its attempts."""
    outcome = decide(a_run(b""), job=a_job(attempt=5, interruptions=2)).outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=30 * 4 + 15)


@pytest.mark.parametrize("run", [a_run(OK, cause=Cause.TIMED_OUT), a_run(OK, cause=Cause.OUTPUT_LIMIT)])
def test_an_answer_of_a_run_that_was_cut_short_is_no_answer(run: Finished) -> None:
    """Nothing follows from it; it is kept to be looked at."""
    verdict = decide(run)
    assert verdict.response is None
    assert isinstance(verdict.outcome, Retried)
    assert verdict.outcome.evidence
    assert verdict.outcome.evidence.result == '{"status": "ok", "result": "done"}'


def test_the_original_reading_of_exit_codes_can_be_asked_for() -> None:
    """`ignore_exit_code`: an ok response counts; but not after a signal, and never against 78."""
    ignoring = RetryPolicy(timeout=timedelta(seconds=2), ignore_exit_code=True)
    assert isinstance(decide(a_run(OK, exit_code=1), policy=ignoring).outcome, Succeeded)
    assert isinstance(decide(a_run(OK, exit_code=None, signal=9), policy=ignoring).outcome, Retried)
    assert isinstance(decide(a_run(OK, exit_code=78), policy=ignoring).outcome, Failed)


# --- when again -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tries", "seconds"), [(1, 30), (2, 60), (3, 120), (4, 240)])
def test_the_delay_doubles_and_is_spread_by_one_base(tries: int, seconds: float) -> None:
    """base * 2^(attempt-1), plus a random part of the base."""
    base = timedelta(seconds=30)
    assert backoff(base, tries, 0.0) == timedelta(seconds=seconds)
    assert backoff(base, tries, 0.999).total_seconds() == pytest.approx(seconds + 30, abs=0.1)


@pytest.mark.parametrize("tries", [9, 50, 10_000])
def test_the_delay_stays_within_an_hour_however_many_tries(tries: int) -> None:
    """No overflow, no job that sleeps for years."""
    assert backoff(timedelta(seconds=30), tries, 0.5) == timedelta(hours=1)


@pytest.mark.parametrize("tries", [1, 2, 3, 21, 10_000])
def test_the_delay_of_a_long_base_is_twice_the_base_at_most(tries: int) -> None:
    """However long a base can be written: days that are doubled on and on are more than a duration can be."""
    assert backoff(LONGEST, tries, 0.0) == LONGEST * min(tries, 2)
    assert backoff(LONGEST, tries, 0.999) <= 2 * LONGEST


def test_a_base_of_zero_means_at_once() -> None:
    assert backoff(timedelta(), 3, 0.9) == timedelta()


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (2.5, 2.5), (3600, 3600), (10**400, 3600)])
def test_a_plugin_can_say_when_to_try_again(asked: float, given: float) -> None:
    """`retry_after` replaces the back-off, up to an hour."""
    outcome = decide(a_run(error(retry_after=asked))).outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=given)


# --- what is kept -----------------------------------------------------------------------------------------------------


def _evidence(run: Finished, policy: RetryPolicy = POLICY) -> Any:
    outcome = decide(run, policy=policy).outcome
    return outcome.evidence  # type: ignore[union-attr]


def test_a_valid_answer_is_kept_as_the_plugin_wrote_it() -> None:
    """Byte for byte, blanks and all, however long."""
    text = '{"status":"ok",\r\n "result":"' + "é" * LONGEST_OUTPUT + '"}\n'
    assert _evidence(a_run(text.encode())).result == text


def test_a_valid_answer_is_in_memory_once() -> None:
    """What is kept is the text that was checked, not another one: it may be megabytes."""
    verdict = decide(a_run(OK))
    assert isinstance(verdict.outcome, Succeeded)
    assert verdict.response
    assert verdict.outcome.evidence.result is verdict.response.text


def test_an_answer_with_half_a_surrogate_pair_is_kept_corrected() -> None:
    """What is stored can be read by every JSON reader."""
    assert (
        _evidence(a_run(b'{"status":"ok","result":"half \\ud800"}')).result == '{"status":"ok","result":"half \ufffd"}'
    )


def test_of_output_that_is_no_answer_the_beginning_is_kept() -> None:
    """With a mark that says how much there was."""
    kept = _evidence(a_run(b"x" * 200_000)).result
    assert kept == "x" * LONGEST_OUTPUT + "\n[cut; 200000 bytes in all]"
    assert _evidence(a_run(b"caf\xe9 \x00")).result == "caf\\xe9 \x00"
    assert _evidence(a_run(b"")).result is None


def test_of_stderr_the_end_is_kept_with_a_mark() -> None:
    """64 KiB arrive here; how much went before is told."""
    assert _evidence(a_run(OK, stderr=b"last words\n", stderr_total=100)).stderr == "[89 bytes cut]\nlast words\n"
    assert _evidence(a_run(OK, stderr=b"caf\xe9\n")).stderr == "caf\\xe9\n"
    assert _evidence(a_run(OK)).stderr is None


def test_the_facts_of_the_process_are_kept() -> None:
    """When, how long, how it ended."""
    kept = _evidence(a_run(b"", exit_code=None, signal=15, cause=Cause.TIMED_OUT))
    assert (kept.started_at, kept.duration) == (NOW, timedelta(seconds=1.5))
    assert (kept.exit_code, kept.signal, kept.timed_out) == (None, 15, True)


def test_a_failure_without_words_quotes_the_last_line_of_stderr() -> None:
    """Most programs say there what went wrong; long lines and errors are cut."""
    outcome = decide(a_run(b"", exit_code=1, stderr=b"Traceback:\nValueError: no\n\n")).outcome
    assert isinstance(outcome, Retried)
    assert outcome.error == "exit code 1; plugin produced no output on stdout; stderr: ValueError: no"
    long = decide(a_run(error(error="x" * 100_000))).outcome
    assert isinstance(long, Retried)
    assert len(long.error) == LONGEST_ERROR


# --- secrets ----------------------------------------------------------------------------------------------------------

MASKING = RetryPolicy(timeout=timedelta(seconds=2), mask=Mask([SECRET]), limits=ProtocolLimits())


@pytest.mark.parametrize(
    "run",
    [
        a_run(b"", exit_code=1, stderr=f"token {SECRET}\n".encode()),
        a_run(error(error=f"login {SECRET} failed")),
        a_run(f"Traceback {SECRET}".encode()),
        # Where a cut falls into the secret, half of it would not be recognised any more.
        a_run(b"", exit_code=1, stderr=b"x" * 295 + SECRET.encode()),
        a_run(error(error="x" * (LONGEST_ERROR - 5) + SECRET)),
        a_run(b"x" * (LONGEST_OUTPUT - 5) + SECRET.encode()),
    ],
    ids=["stderr", "error", "output", "cut stderr", "cut error", "cut output"],
)
def test_known_secrets_are_in_no_error_and_no_text_that_is_kept(run: Finished) -> None:
    """Not even a part of one; a valid answer alone is data and stays as it is."""
    outcome = decide(run, policy=MASKING).outcome
    assert isinstance(outcome, Retried)
    assert outcome.evidence
    kept = (outcome.error, outcome.evidence.stderr or "", outcome.evidence.result or "")
    answers = run.stdout.startswith(b'{"status"')
    for text in kept[:2] if answers else kept:
        assert SECRET[:5] not in text


def test_a_stderr_that_was_cut_does_not_begin_with_the_end_of_a_secret() -> None:
    """Neither where it is kept nor where its last line says why the attempt failed."""
    rest = SECRET[3:]
    run = a_run(b"", exit_code=1, stderr=rest.encode(), stderr_total=1_000_000)
    outcome = decide(run, policy=MASKING).outcome
    assert isinstance(outcome, Retried)
    assert outcome.evidence
    assert rest not in outcome.error
    assert outcome.evidence.stderr == f"[{1_000_000 - len(rest)} bytes cut]\n{HIDDEN}"


def test_a_valid_answer_is_never_masked() -> None:
    """A result with a secret in it is data; blanking parts of data would corrupt it."""
    result = _evidence(a_run({"status": "ok", "result": SECRET}), MASKING).result
    assert SECRET in result
