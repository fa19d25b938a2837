"""Everything a process is given, decided before it is spawned: request, environment, deadline. Pure but for one look
at the entrypoint.

A job that must not run ends here with its reason.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from attrs import define, field, frozen

from ductile.config.sections.settings import ProcessLimits
from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.model import Dead, Failed, Job
from ductile.engine.judge import RetryPolicy
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.procfs import INSTANCE_MARKER, JOB_MARKER
from ductile.engine.process.start import ProcessSpec
from ductile.engine.process.streams import Caps
from ductile.pipeline.compile.plan import HANDLE
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.step_input import StepInput, step_of, tell
from ductile.plugin import protocol
from ductile.plugin.protocol import encode_request


@frozen(kw_only=True)
class Ready:
    """One attempt, ready to be spawned."""

    lane: ConfiguredPlugin
    argv: tuple[str, ...]
    request: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    policy: RetryPolicy
    caps: Caps
    limits: ResourceLimits | None
    grace: timedelta
    """How long the process may take to end after SIGTERM."""
    warnings: tuple[str, ...] = ()
    """What is odd about the plugin now, without being a reason not to run it."""

    @property
    def spec(self) -> ProcessSpec:
        """What the process is given."""
        return ProcessSpec(
            argv=self.argv,
            request=self.request,
            environment=self.environment,
            timeout_seconds=self.policy.timeout.total_seconds(),
            grace_seconds=self.grace.total_seconds(),
            caps=self.caps,
            limits=self.limits,
        )


@frozen
class Refuse:
    """The job cannot run, now or later."""

    outcome: Failed | Dead

    @property
    def error(self) -> str:
        return self.outcome.error


@frozen
class Postpone:
    """The job cannot run now: something is wrong with the plugin that may be put right. Retried as the policy says."""

    error: str
    policy: RetryPolicy


@frozen
class CommandSettings:
    """What is the same for every job of one command under one configuration."""

    lane: ConfiguredPlugin
    argv: tuple[str, ...]
    policy: RetryPolicy
    caps: Caps
    limits: ResourceLimits | None
    grace: timedelta


@define(eq=False)
class PreflightCache:
    """What is the same for every job of a command, computed once per configuration."""

    terms: dict[tuple[str, str, str], CommandSettings] = field(factory=dict)

    def terms_of(self, snapshot: Snapshot, plugin: str, command: str) -> CommandSettings:
        """Raises DuctileError if nothing of that name may run."""
        key = (snapshot.id, plugin, command)
        found = self.terms.get(key)
        if found is None:
            # A copy: a thread that reads a large payload may be here too.
            if any(known[0] != snapshot.id for known in tuple(self.terms)):
                self.terms.clear()
            found = self.terms[key] = terms_of(snapshot, plugin, command)
        return found


def preflight(
    snapshot: Snapshot,
    job: Job,
    *,
    state_json: str,
    instance: str,
    now: datetime,
    memory: PreflightCache | None = None,
) -> Ready | Refuse | Postpone:
    """What to run for this attempt, or why not."""
    memory = memory or PreflightCache()
    try:
        terms = memory.terms_of(snapshot, job.plugin, job.command)
        node = step_of(snapshot.plans, job)
    except DuctileError as error:
        return Refuse(Dead(str(error)))
    lane, policy = terms.lane, terms.policy
    findings = lane.plugin.recheck()
    if refusals := [str(finding) for finding in findings if finding.is_refusal]:
        return Postpone(f"plugin {lane.name} is not trusted now: {'; '.join(refusals)}", policy)
    try:
        told = tell(job, node)
    except (PathAbsent, Unreadable) as error:
        return Refuse(Failed(str(error)))
    return Ready(
        lane=lane,
        argv=terms.argv,
        request=_request(lane, job, told, policy.timeout, state_json, now),
        environment={**lane.environment, JOB_MARKER: job.id, INSTANCE_MARKER: instance},
        policy=policy,
        caps=terms.caps,
        limits=terms.limits,
        grace=terms.grace,
        warnings=tuple(map(str, findings)),
    )


def terms_of(snapshot: Snapshot, plugin: str, command: str) -> CommandSettings:
    """Raises DuctileError if nothing of that name may run."""
    lane, service = snapshot.lane(plugin), snapshot.config.settings.service
    lane.command(command)
    return CommandSettings(
        lane=lane,
        argv=(str(lane.plugin.entrypoint),),
        policy=policy_of(snapshot, lane, command),
        caps=Caps(service.limits.stdout, service.limits.stderr),
        limits=_process_limits(lane.entry.limits),
        grace=service.kill_grace,
    )


def policy_of(snapshot: Snapshot, lane: ConfiguredPlugin, command: str) -> RetryPolicy:
    limits = snapshot.config.settings.service.limits
    return RetryPolicy(
        timeout=lane.entry.timeout_for(command),
        backoff_base=lane.entry.retry.backoff_base,
        ignore_exit_code=lane.entry.ignore_exit_code,
        mask=snapshot.config.mask,
        limits=protocol.ProtocolLimits(
            stdout_bytes=limits.stdout,
            events=limits.events,
            dedupe_key_bytes=limits.dedupe_key,
            state_bytes=limits.state,
            log_lines=limits.logs,
        ),
    )


def _request(
    lane: ConfiguredPlugin, job: Job, told: StepInput, timeout: timedelta, state_json: str, now: datetime
) -> bytes:
    # The payload of a `handle` job is the whole event; plugins find it under both names.
    return encode_request(
        job_id=job.id,
        command=job.command,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        deadline_at=now + timeout,
        config=lane.config_json,
        state=state_json,
        payload=told.payload,
        context=told.context,
        event=told.payload if job.command == HANDLE else None,
    )


def _process_limits(wanted: ProcessLimits) -> ResourceLimits | None:
    if wanted == ProcessLimits():
        return None
    return ResourceLimits(
        address_space=wanted.memory,
        open_files=wanted.open_files,
        processes=wanted.processes,
        cpu_seconds=max(1, round(wanted.cpu.total_seconds())) if wanted.cpu else None,
        file_size=wanted.file_size,
    )
