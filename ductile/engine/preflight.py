"""Prepare one attempt: request, environment, deadline, limits; or decide that the job cannot run.

Pure, except that it checks the files of the plugin again.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from attrs import define, field, frozen

from ductile.config.sections.settings import ProcessLimits
from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.model import HANDLE, Dead, Failed, Job, OutcomeCode
from ductile.engine.judge import RetryPolicy
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.procfs import INSTANCE_MARKER, JOB_MARKER
from ductile.engine.process.start import ProcessSpec
from ductile.engine.process.streams import Caps
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.step_input import StepInput, build_step_input, find_step
from ductile.plugin import protocol
from ductile.plugin.checked_files import CheckedFiles, FileChecker
from ductile.plugin.protocol import encode_request


@frozen(kw_only=True)
class Ready:
    """An attempt that can start."""

    configured: ConfiguredPlugin
    argv: tuple[str, ...]
    request: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    policy: RetryPolicy
    caps: Caps
    limits: ResourceLimits | None
    grace: timedelta
    """Time between SIGTERM and SIGKILL."""
    files: CheckedFiles
    """The files of the plugin that is run."""
    warnings: tuple[str, ...] = ()
    """Findings about the plugin that do not forbid the run."""

    @property
    def spec(self) -> ProcessSpec:
        """The process to start."""
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
    """The job cannot run and is not retried."""

    outcome: Failed | Dead

    @property
    def error(self) -> str:
        return self.outcome.error


@frozen
class Postpone:
    """The job cannot run now because the plugin is not trusted. It is retried according to the policy."""

    error: str
    policy: RetryPolicy


@frozen
class Block:
    """The plugin must not run with these files. Its jobs wait until they are restored, or sealed and loaded."""

    plugin: str
    files: CheckedFiles

    @property
    def error(self) -> str:
        return f"plugin {self.plugin} is not started under service.strict_mode: {self.files.message}"


@frozen
class CommandSettings:
    """The settings that all jobs of one command share under one configuration."""

    configured: ConfiguredPlugin
    argv: tuple[str, ...]
    policy: RetryPolicy
    caps: Caps
    limits: ResourceLimits | None
    grace: timedelta


@define(eq=False)
class PreflightCache:
    """The settings of each command, computed once per configuration, and the last check of each plugin's files."""

    files: FileChecker = field(factory=FileChecker)
    settings: dict[tuple[str, str, str], CommandSettings] = field(factory=dict)

    def command_settings(self, snapshot: Snapshot, plugin: str, command: str) -> CommandSettings:
        """Return the settings of a command. Raises DuctileError if the plugin or the command cannot run."""
        key = (snapshot.id, plugin, command)
        found = self.settings.get(key)
        if found is None:
            # A copy, because a thread that prepares a large job can use this cache too.
            if any(known[0] != snapshot.id for known in tuple(self.settings)):
                self.settings.clear()
            found = self.settings[key] = command_settings(snapshot, plugin, command)
        return found


def preflight(
    snapshot: Snapshot,
    job: Job,
    *,
    state_json: str,
    instance: str,
    now: datetime,
    cache: PreflightCache | None = None,
) -> Ready | Refuse | Postpone | Block:
    """Return what to run for this attempt, or why it cannot run."""
    cache = cache or PreflightCache()
    try:
        settings = cache.command_settings(snapshot, job.plugin, job.command)
    except DuctileError as error:
        return Refuse(Dead(str(error), code=OutcomeCode.PLUGIN_UNAVAILABLE))
    try:
        node = find_step(snapshot.plans, job)
    except DuctileError as error:
        return Refuse(Dead(str(error), code=OutcomeCode.STEP_REMOVED))
    configured, policy = settings.configured, settings.policy
    files = cache.files.check(configured.plugin)
    if files.has_drifted and snapshot.config.settings.service.strict_mode:
        return Block(configured.name, files)
    findings = configured.plugin.recheck()
    if refusals := [str(finding) for finding in findings if finding.is_refusal]:
        return Postpone(f"plugin {configured.name} is not trusted now: {'; '.join(refusals)}", policy)
    try:
        step_input = build_step_input(job, node)
    except (PathAbsent, Unreadable) as error:
        return Refuse(Failed(str(error), code=OutcomeCode.REFUSED))
    return Ready(
        configured=configured,
        argv=settings.argv,
        request=_request(configured, job, step_input, policy.timeout, state_json, now),
        environment={**configured.environment, JOB_MARKER: job.id, INSTANCE_MARKER: instance},
        policy=policy,
        caps=settings.caps,
        limits=settings.limits,
        grace=settings.grace,
        files=files,
        warnings=tuple(map(str, findings)),
    )


def command_settings(snapshot: Snapshot, plugin: str, command: str) -> CommandSettings:
    """Compute the settings of a command. Raises DuctileError if the plugin or the command cannot run."""
    configured, service = snapshot.plugin(plugin), snapshot.config.settings.service
    configured.command(command)  # raises if there is none
    return CommandSettings(
        configured=configured,
        argv=(str(configured.plugin.entrypoint),),
        policy=policy_of(snapshot, configured, command),
        caps=Caps(service.limits.stdout, service.limits.stderr),
        limits=_process_limits(configured.entry.limits),
        grace=service.kill_grace,
    )


def policy_of(snapshot: Snapshot, configured: ConfiguredPlugin, command: str) -> RetryPolicy:
    limits = snapshot.config.settings.service.limits
    return RetryPolicy(
        timeout=configured.entry.timeout_for(command),
        backoff_base=configured.entry.retry.backoff_base,
        ignore_exit_code=configured.entry.ignore_exit_code,
        mask=snapshot.config.mask,
        resources=_process_limits(configured.entry.limits),
        limits=protocol.ProtocolLimits(
            stdout_bytes=limits.stdout,
            events=limits.events,
            dedupe_key_bytes=limits.dedupe_key,
            state_bytes=limits.state,
            log_lines=limits.logs,
        ),
    )


def _request(
    configured: ConfiguredPlugin, job: Job, step_input: StepInput, timeout: timedelta, state_json: str, now: datetime
) -> bytes:
    # The payload of a `handle` job is the whole event. The protocol offers it under both names.
    return encode_request(
        job_id=job.id,
        command=job.command,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        deadline_at=now + timeout,
        config=configured.config_json,
        state=state_json,
        payload=step_input.payload,
        context=step_input.context,
        event=step_input.payload if job.command == HANDLE else None,
    )


def _process_limits(limits: ProcessLimits) -> ResourceLimits | None:
    if limits == ProcessLimits():
        return None
    return ResourceLimits(
        address_space=limits.memory,
        open_files=limits.open_files,
        processes=limits.processes,
        cpu_seconds=max(1, round(limits.cpu.total_seconds())) if limits.cpu else None,
        file_size=limits.file_size,
    )
