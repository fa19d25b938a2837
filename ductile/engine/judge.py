"""What a finished process means for its job: exit, output and policy → outcome. Pure.

The decision table of the service in one place. Knows nothing of processes beyond what `process.run` reports, and
nothing of rows; randomness comes in as a number.
"""

import signal
from datetime import datetime, timedelta

from attrs import evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import Dead, Evidence, Failed, Interrupted, Job, Outcome, Retried, Succeeded
from ductile.core.secret import Mask
from ductile.core.units import format_duration
from ductile.engine.process.run import Cause, Finished
from ductile.engine.process.start import SpawnFailed
from ductile.plugin.protocol import DEFAULT_LIMITS, Garbled, PluginResponse, ProtocolLimits, decode_response

CONFIG_ERROR = 78
"""EX_CONFIG of sysexits: trying again would not help."""
LONGEST_DELAY = timedelta(hours=1)
LONGEST_ERROR = 4000
LONGEST_OUTPUT = 64 << 10
"""What is kept of output that is no answer: enough to see what went wrong, too little to fill the ledger."""
DRAIN = "drain"


@frozen(kw_only=True)
class RetryPolicy:
    """What the operator decided about failures of one lane."""

    timeout: timedelta
    backoff_base: timedelta = timedelta(seconds=30)
    ignore_exit_code: bool = False
    limits: ProtocolLimits = DEFAULT_LIMITS
    mask: Mask = field(factory=Mask, repr=False)
    """Takes known secrets out of what is kept of stderr and errors."""


@frozen
class Verdict:
    """How the attempt ended, and the plugin's answer where there is a valid one."""

    outcome: Outcome
    response: PluginResponse | None = None


@frozen
class _Failure:
    """Why an attempt did not succeed, and whether another one may."""

    error: str
    final: bool = False
    retry_after: timedelta | None = None


def judge(
    job: Job, run: Finished | SpawnFailed, policy: RetryPolicy, *, started_at: datetime, chance: float
) -> Verdict:
    """The outcome of one attempt. `chance` in [0, 1) spreads the retry."""
    if isinstance(run, SpawnFailed):
        evidence = Evidence(started_at=started_at, duration=timedelta())
        return Verdict(_failed(job, _Failure(f"cannot start: {run.reason}"), policy, evidence, chance))
    if run.cause is Cause.EXITED:
        answer = _answer(run, policy)
        response = answer if isinstance(answer, PluginResponse) else None
        failure = _failure(run, answer, policy)
    else:
        response, failure = None, _cut_short(run, policy)
    evidence = evidence_of(run, response, started_at, policy.mask)
    if run.cause is Cause.STOPPED:
        return Verdict(stopped(run.stopped, evidence))
    if failure is None:
        return Verdict(Succeeded(evidence), response)
    return Verdict(_failed(job, failure, policy, evidence, chance), response)


def _answer(run: Finished, policy: RetryPolicy) -> PluginResponse | Garbled:
    answer = decode_response(run.stdout, policy.limits)
    if isinstance(answer, PluginResponse):
        return answer
    said = run.stdout.decode("utf-8", "surrogateescape")
    if (masked := policy.mask(said)) == said:
        return answer
    # The reason quotes some of what was said, and half a secret would no longer be recognised in it.
    again = decode_response(masked.encode("utf-8", "surrogateescape"), policy.limits)
    return evolve(answer, reason=again.reason if isinstance(again, Garbled) else "stdout is not a valid response")


def _cut_short(run: Finished, policy: RetryPolicy) -> _Failure:
    """What it may have said before it was ended is no answer."""
    if run.cause is Cause.TIMED_OUT:
        return _Failure(f"timed out after {format_duration(policy.timeout)}")
    return _Failure(f"output limit: more than {policy.limits.stdout_bytes} bytes on stdout")


def _failure(run: Finished, answer: PluginResponse | Garbled, policy: RetryPolicy) -> _Failure | None:
    # 1. The plugin says its configuration is wrong, whatever else it says.
    if run.exit_code == CONFIG_ERROR:
        return _Failure(_with_exit(run, answer, policy.mask), final=True)
    # 2. It did not say anything that can be understood.
    if isinstance(answer, Garbled):
        return _Failure(_with_exit(run, answer, policy.mask), final=answer.final)
    # 3. It says that it failed.
    if not answer.ok:
        return _Failure(answer.error, final=not answer.retry, retry_after=answer.retry_after)
    # 4. It says that all is well, but did not end well.
    if run.signal is not None or (run.exit_code != 0 and not policy.ignore_exit_code):
        return _Failure(f"{_exit(run)} after a response with status ok")
    return None


def _failed(job: Job, failure: _Failure, policy: RetryPolicy, evidence: Evidence, chance: float) -> Outcome:
    error = policy.mask(failure.error)[:LONGEST_ERROR]
    if failure.final:
        return Failed(error, evidence)
    if job.tries >= job.max_attempts:
        return Dead(f"attempts used up ({job.tries} of {job.max_attempts}): {error}", evidence)
    delay = failure.retry_after if failure.retry_after is not None else backoff(policy.backoff_base, job.tries, chance)
    return Retried(error, delay, evidence)


def backoff(base: timedelta, tries: int, chance: float) -> timedelta:
    """`base * 2^(tries-1)` plus a random part of `base`; never more than an hour, or twice a longer base."""
    if not base:
        return base
    longest = max(LONGEST_DELAY, 2 * base)
    # No more doublings than lead past the longest: days that are doubled on and on are more than a timedelta can hold.
    doublings = min(tries - 1, (longest // base).bit_length())
    return min(base * (1 << doublings) + base * chance, longest)


def stopped(reason: str | None, evidence: Evidence | None = None) -> Outcome:
    """The outcome of an attempt that was told to stop, before its start or in mid-run."""
    if reason == DRAIN:
        return Interrupted("the service was stopping", evidence)
    return Dead(f"cancelled: {reason}", evidence)


def evidence_of(run: Finished, response: PluginResponse | None, started_at: datetime, mask: Mask) -> Evidence:
    """What is kept of a run: a valid answer as it is, and the beginning of any other output as text."""
    return Evidence(
        started_at=started_at,
        duration=timedelta(seconds=run.duration),
        exit_code=run.exit_code,
        signal=run.signal,
        timed_out=run.timed_out,
        result=_answer_text(run, response) if response else _output_text(run, mask),
        stderr=_stderr_text(run, mask),
    )


def _answer_text(run: Finished, response: PluginResponse) -> str:
    """As the plugin wrote it; an answer that had to be corrected is written anew."""
    return strict_json.dumps(strict_json.loads(run.stdout)) if response.notes else response.text


def _output_text(run: Finished, mask: Mask) -> str | None:
    if not run.stdout:
        return None
    # More than is kept, so that a secret at the cut is recognised as a whole.
    text = mask(run.stdout[: 2 * LONGEST_OUTPUT].decode("utf-8", "backslashreplace"))
    is_cut = len(text) > LONGEST_OUTPUT or run.stdout_total > LONGEST_OUTPUT
    return f"{text[:LONGEST_OUTPUT]}\n[cut; {run.stdout_total} bytes in all]" if is_cut else text


def _stderr_text(run: Finished, mask: Mask) -> str | None:
    if not run.stderr:
        return None
    cut = f"[{run.stderr_total - len(run.stderr)} bytes cut]\n" if run.stderr_truncated else ""
    return cut + run.words(mask)


def _with_exit(run: Finished, answer: PluginResponse | Garbled, mask: Mask) -> str:
    """The most telling words for a failure: what the plugin said, how it ended, the last line of its stderr."""
    if isinstance(answer, PluginResponse):
        return f"{_exit(run)}: {answer.error}" if answer.error else f"{_exit(run)} after a response with status ok"
    parts = [answer.reason] if run.exit_code == 0 else [_exit(run), answer.reason]
    # Masked before it is cut: half a secret would no longer be recognised.
    lines = run.words(mask).strip().splitlines()
    return "; ".join([*parts, *([f"stderr: {lines[-1][:300]}"] if lines else [])])


def _exit(run: Finished) -> str:
    if run.signal is not None:
        try:
            return f"killed by {signal.Signals(run.signal).name}"
        except ValueError:
            return f"killed by signal {run.signal}"
    return f"exit code {run.exit_code}"
