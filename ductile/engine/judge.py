"""Decide the outcome of an attempt from its exit, its output and the retry policy. Pure.

Knows a process only as `process.run` reports it. Does not know the ledger; the caller supplies randomness.
"""

import signal
from datetime import datetime, timedelta

from attrs import evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import (
    NO_DATA,
    Evidence,
    Failed,
    Interrupted,
    Job,
    Outcome,
    OutcomeCode,
    Retried,
    Succeeded,
    attempts_used_up,
    cancelled,
)
from ductile.core.secret import Mask
from ductile.core.units import format_duration
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.run import Cause, Finished
from ductile.engine.process.start import SpawnFailed
from ductile.plugin.checked_files import CheckedFiles
from ductile.plugin.protocol import DEFAULT_LIMITS, InvalidResponse, PluginResponse, ProtocolLimits, decode_response

EXIT_CONFIG_ERROR = 78
"""EX_CONFIG of sysexits: a retry would not help."""
MAX_BACKOFF = timedelta(hours=1)
MAX_ERROR_CHARS = 4000
MAX_OUTPUT_CHARS = 64 << 10
"""Stored prefix of output that is not a valid response: enough to diagnose it, too little to fill the ledger."""
DRAIN = "drain"
OUT_OF_MEMORY_TEXTS = (b"MemoryError", b"Cannot allocate memory", b"out of memory", b"std::bad_alloc")
"""What interpreters and shells print on stderr when an allocation fails."""


@frozen(kw_only=True)
class RetryPolicy:
    """The timeout, retry and output settings of one command."""

    timeout: timedelta
    backoff_base: timedelta = timedelta(seconds=30)
    ignore_exit_code: bool = False
    limits: ProtocolLimits = DEFAULT_LIMITS
    resources: ResourceLimits | None = None
    mask: Mask = field(factory=Mask, repr=False)
    """Removes known secrets from stored stderr and errors."""


@frozen
class Verdict:
    """The outcome of an attempt, and the plugin's response if it is valid."""

    outcome: Outcome
    response: PluginResponse | None = None


@frozen
class _Failure:
    """Why an attempt failed, and whether it may be retried."""

    error: str
    final: OutcomeCode | None = None
    """Why the job is not retried; None if it may be."""
    retry_after: timedelta | None = None
    limit_key: str | None = None
    """The configuration key of the limit that caused it."""

    @property
    def data(self) -> dict[str, str]:
        return {"limit_key": self.limit_key} if self.limit_key else {}


def judge(
    job: Job,
    run: Finished | SpawnFailed,
    policy: RetryPolicy,
    *,
    started_at: datetime,
    jitter: float,
    files: CheckedFiles | None = None,
) -> Verdict:
    """Return the outcome of one attempt. `jitter` in [0, 1) spreads the retry delay."""
    if isinstance(run, SpawnFailed):
        evidence = Evidence(started_at=started_at, duration=timedelta())
        return Verdict(_failed(job, _Failure(f"cannot start: {run.reason}"), policy, evidence, jitter))
    if run.cause is Cause.EXITED:
        decoded = _decode(run, policy)
        response = decoded if isinstance(decoded, PluginResponse) else None
        failure = _failure(run, decoded, policy)
        if failure is not None and (key := _exceeded_resource(run, policy.resources)):
            failure = evolve(failure, limit_key=f"plugins.{job.plugin}.limits.{key}")
    else:
        response, failure = None, _ended_early(job, run, policy)
    evidence = evidence_of(run, response, started_at, policy.mask, files)
    if run.cause is Cause.STOPPED:
        return Verdict(stop_outcome(run.stopped, evidence))
    if failure is None:
        return Verdict(Succeeded(evidence), response)
    return Verdict(_failed(job, failure, policy, evidence, jitter), response)


def _decode(run: Finished, policy: RetryPolicy) -> PluginResponse | InvalidResponse:
    response = decode_response(run.stdout, policy.limits)
    if isinstance(response, PluginResponse):
        return response
    text = run.stdout.decode("utf-8", "surrogateescape")
    if (masked := policy.mask(text)) == text:
        return response
    # The reason quotes part of stdout. Masking it afterwards would miss a secret that the quote cuts in half.
    again = decode_response(masked.encode("utf-8", "surrogateescape"), policy.limits)
    reason = again.reason if isinstance(again, InvalidResponse) else "stdout is not a valid response"
    return evolve(response, reason=reason)


def _ended_early(job: Job, run: Finished, policy: RetryPolicy) -> _Failure:
    """Return why a run was ended early. A response from before that does not count."""
    if run.cause is Cause.TIMED_OUT:
        key = f"plugins.{job.plugin}.timeouts.{job.command}"
        return _Failure(f"timed out after {format_duration(policy.timeout)}", limit_key=key)
    error = f"output limit: more than {policy.limits.stdout_bytes} bytes on stdout"
    return _Failure(error, limit_key="service.limits.stdout")


def _exceeded_resource(run: Finished, resources: ResourceLimits | None) -> str | None:
    """Return the key of the configured resource limit that ended the run. Only stderr shows a lack of memory."""
    if resources is None:
        return None
    if resources.cpu_seconds is not None and run.signal == signal.SIGXCPU:
        return "cpu"
    if resources.file_size is not None and run.signal == signal.SIGXFSZ:
        return "file_size"
    is_out_of_memory = any(text in run.stderr for text in OUT_OF_MEMORY_TEXTS)
    return "memory" if resources.address_space is not None and is_out_of_memory else None


def _failure(run: Finished, response: PluginResponse | InvalidResponse, policy: RetryPolicy) -> _Failure | None:
    # 1. The exit code reports a configuration error. It overrides any response.
    if run.exit_code == EXIT_CONFIG_ERROR:
        return _Failure(_failure_text(run, response, policy.mask), final=OutcomeCode.EXIT_78)
    # 2. There is no valid response.
    if isinstance(response, InvalidResponse):
        final = OutcomeCode.FINAL if response.final else None
        return _Failure(_failure_text(run, response, policy.mask), final=final, limit_key=response.limit_key)
    # 3. The response reports an error.
    if not response.ok:
        final = None if response.retry else OutcomeCode.RETRY_FALSE
        return _Failure(response.error, final=final, retry_after=response.retry_after)
    # 4. The response reports success, but the exit does not.
    if run.signal is not None or (run.exit_code != 0 and not policy.ignore_exit_code):
        return _Failure(f"{_exit_text(run)} after a response with status ok")
    return None


def _failed(job: Job, failure: _Failure, policy: RetryPolicy, evidence: Evidence, jitter: float) -> Outcome:
    error = policy.mask(failure.error)[:MAX_ERROR_CHARS]
    if failure.final:
        return Failed(error, evidence, failure.final, failure.data)
    if job.tries >= job.max_attempts:
        dead = attempts_used_up(job, error, evidence)
        return evolve(dead, data={**dead.data, **failure.data})
    delay = failure.retry_after if failure.retry_after is not None else backoff(policy.backoff_base, job.tries, jitter)
    return Retried(error, delay, evidence, failure.data)


def backoff(base: timedelta, tries: int, jitter: float) -> timedelta:
    """Return `base * 2^(tries-1) + base * jitter`, at most one hour or twice the base, whichever is longer."""
    if not base:
        return base
    limit = max(MAX_BACKOFF, 2 * base)
    # Stop doubling beyond the limit: a timedelta would overflow.
    doublings = min(tries - 1, (limit // base).bit_length())
    return min(base * (1 << doublings) + base * jitter, limit)


def stop_outcome(reason: str | None, evidence: Evidence | None = None) -> Outcome:
    """Return the outcome of an attempt that was stopped, before its start or while it ran."""
    if reason == DRAIN:
        return Interrupted("the service was stopping", evidence)
    return cancelled(reason, evidence)


def evidence_of(
    run: Finished,
    response: PluginResponse | None,
    started_at: datetime,
    mask: Mask,
    files: CheckedFiles | None = None,
) -> Evidence:
    """Return what the ledger stores about a run: a valid response unchanged, or a prefix of other output as text."""
    return Evidence(
        started_at=started_at,
        duration=timedelta(seconds=run.duration),
        exit_code=run.exit_code,
        signal=run.signal,
        timed_out=run.timed_out,
        result=_response_text(run, response) if response else _output_text(run, mask),
        stderr=_stderr_text(run, mask),
        plugin_fingerprint=files.fingerprint if files else None,
        plugin_changes=files.stored_changes if files else NO_DATA,
    )


def _response_text(run: Finished, response: PluginResponse) -> str:
    """Return the response as the plugin wrote it, or encoded again if it had to be corrected."""
    return strict_json.dumps(strict_json.loads(run.stdout)) if response.notes else response.text


def _output_text(run: Finished, mask: Mask) -> str | None:
    if not run.stdout:
        return None
    # Mask more than is stored, so that a secret at the cut is recognised.
    text = mask(run.stdout[: 2 * MAX_OUTPUT_CHARS].decode("utf-8", "backslashreplace"))
    is_cut = len(text) > MAX_OUTPUT_CHARS or run.stdout_total > MAX_OUTPUT_CHARS
    return f"{text[:MAX_OUTPUT_CHARS]}\n[cut; {run.stdout_total} bytes in all]" if is_cut else text


def _stderr_text(run: Finished, mask: Mask) -> str | None:
    if not run.stderr:
        return None
    cut = f"[{run.stderr_total - len(run.stderr)} bytes cut]\n" if run.stderr_truncated else ""
    return cut + run.stderr_text(mask)


def _failure_text(run: Finished, response: PluginResponse | InvalidResponse, mask: Mask) -> str:
    """Return the error of a failed run: its exit, what is wrong with the response, the last line of stderr."""
    if isinstance(response, PluginResponse):
        return f"{_exit_text(run)}{f': {response.error}' if response.error else ' after a response with status ok'}"
    parts = [response.reason] if run.exit_code == 0 else [_exit_text(run), response.reason]
    # Mask before cutting: a secret that is cut in half would not be recognised.
    lines = run.stderr_text(mask).strip().splitlines()
    return "; ".join([*parts, *([f"stderr: {lines[-1][:300]}"] if lines else [])])


def _exit_text(run: Finished) -> str:
    if run.signal is not None:
        try:
            return f"killed by {signal.Signals(run.signal).name}"
        except ValueError:
            return f"killed by signal {run.signal}"
    return f"exit code {run.exit_code}"
