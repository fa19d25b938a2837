"""The dynamic checks of `plugin check`: send each safe request unchanged, then with one mutation at a time.

A request is safe if it comes from a fixture, if its command only reads, or if the caller allows writes.
"""

import signal
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import trio
from attrs import evolve, field, frozen

from ductile.config.load.redaction import looks_secret
from ductile.core.errors import PluginRejected
from ductile.core.model import Failed
from ductile.core.secret import Mask
from ductile.core.units import format_duration
from ductile.devkit.checks.rules import Findings
from ductile.devkit.checks.schemas import full_schema, schema_violations
from ductile.devkit.fixtures.fixture_file import Fixture, FixtureInvalid
from ductile.devkit.fixtures.runner import FixtureRun, run_fixture, run_fixture_sequence
from ductile.devkit.local.attempt import Mutation
from ductile.devkit.local.report import response_of
from ductile.engine.judge import EXIT_CONFIG_ERROR
from ductile.engine.process.run import Cause, Finished, StopRequest
from ductile.plugin.manifest import Command, CommandType
from ductile.plugin.protocol import InvalidResponse, PluginResponse, decode_response
from ductile.plugin.registry import Plugin

CANARY = "dctl-canary-5c0f7e1b9d"
SECRET_KEY = "canary_secret"
UNICODE = 'ünïcödé 日本語 🎈 \u202eabc \u0000 \u2028 \\ " \n'
LARGE_INPUT_BYTES = 2 << 20
CONFIGURED = "<"
"""The prefix of a declared event whose type is configurable: `<configured event_type>`."""
GRACE = timedelta(seconds=2)
STOP_AFTER_SECONDS = 0.5
"""Long enough for a plugin to have started its work."""


def run_dynamic_checks(
    plugin: Plugin,
    fixtures: list[Fixture],
    config: Mapping[str, Any],
    findings: Findings,
    *,
    run_writes: bool,
    deadline: timedelta | None = None,
) -> None:
    """Run the plugin and add the results of all dynamic rules to the findings. This process must be hardened."""
    cases = [
        *fixtures,
        *_default_requests(plugin, {fixture.command for fixture in fixtures}, config, run_writes=run_writes),
    ]
    cases = [evolve(case, deadline=deadline) for case in cases] if deadline else cases
    findings.add("protocol.runs", None if cases else _no_request_reason(plugin, config))
    before = dict(_files(plugin))
    try:
        _check_all(plugin, cases, findings, run_writes=run_writes)
    except PluginRejected as rejected:
        findings.add("robust.files", f"the plugin cannot be loaded after a run: {rejected}")
    after = dict(_files(plugin))
    changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
    findings.add("robust.files", f"files changed in its own folder: {', '.join(changed)}" if changed else None)


def _check_all(plugin: Plugin, cases: list[Fixture], findings: Findings, *, run_writes: bool) -> None:
    mutated: set[str] = set()
    for case in cases:
        check = DynamicCheck(plugin, plugin.manifest.commands.get(case.command), case, findings)
        try:
            response = check.run_unchanged()
        except FixtureInvalid as error:
            check.add_finding("robust.fixtures", str(error))
            continue
        if response is not None and case.command not in mutated:
            mutated.add(case.command)
            check.run_mutations(response, may_drop=run_writes or check.only_reads)


def _default_requests(
    plugin: Plugin, covered: set[str], config: Mapping[str, Any], *, run_writes: bool
) -> Iterator[Fixture]:
    """Yield empty requests for commands without a fixture; none if required configuration is missing."""
    if plugin.manifest.missing_keys(config):
        return
    for command in plugin.manifest.commands.values():
        if command.name not in covered and (run_writes or command.type is CommandType.READ):
            yield Fixture(name=command.name, command=command.name, config=config, payload={})


def _no_request_reason(plugin: Plugin, config: Mapping[str, Any]) -> str:
    missing = plugin.manifest.missing_keys(config)
    reason = f"required configuration is missing: {', '.join(missing)}" if missing else "it has only write commands"
    return f"no command can be run: there are no fixtures, and {reason}"


def _files(plugin: Plugin) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield every file of the plugin with its modification time and size."""
    for path in plugin.folder.rglob("*"):
        with suppress(OSError):  # a file can disappear during the listing
            status = path.lstat()
            if "__pycache__" not in path.parts and not stat.S_ISDIR(status.st_mode):
                yield path.relative_to(plugin.folder).as_posix(), (status.st_mtime_ns, status.st_size)


@frozen
class DynamicCheck:
    """The checks of one request."""

    plugin: Plugin
    command: Command | None
    case: Fixture
    findings: Findings = field(repr=False)

    @property
    def only_reads(self) -> bool:
        return self.command is not None and self.command.type is CommandType.READ

    def run_unchanged(self) -> PluginResponse | Failed | None:
        """Send the request unchanged and return the response; None if it is not valid."""
        fixture_run = run_fixture(self.plugin, self.case, grace=GRACE)
        run = fixture_run.local.run
        if not isinstance(run, Finished):
            self.add_finding("protocol.runs", f"cannot start: {fixture_run.shown['error']}")
            return None
        if self.case.expect:
            self.add_finding("robust.fixtures", "; ".join(fixture_run.differences) or None)
        response = self.check_response(fixture_run)
        if isinstance(response, PluginResponse):
            self._check_events(response)
        return response

    def check_response(self, fixture_run: FixtureRun, rule: str | None = None) -> PluginResponse | Failed | None:
        """Return the response if it is valid. Add its problems under `rule`, or under the rule of each problem."""
        run = fixture_run.local.run
        if not isinstance(run, Finished):
            self.add_finding(rule or "protocol.runs", f"cannot start: {fixture_run.shown['error']}")
            return None
        self._check_process(run, fixture_run)
        if run.cause is Cause.TIMED_OUT:
            self.add_finding(rule or "protocol.deadline", f"no response within {format_duration(self.case.deadline)}")
            return None
        self.add_finding("protocol.deadline", None)
        if run.cause is Cause.OUTPUT_LIMIT:
            self.add_finding(rule or "protocol.limits", f"more than {len(run.stdout)} bytes on stdout")
            return None
        if run.exit_code == EXIT_CONFIG_ERROR and not run.stdout.strip():
            return Failed(f"exit code {EXIT_CONFIG_ERROR}")
        decoded = decode_response(run.stdout)
        if rule is None:
            self._check_exit(run, decoded)
        if isinstance(decoded, InvalidResponse):
            self.add_finding(rule or _rule_for(decoded, run.stdout), decoded.reason)
            return None
        for passed in ("protocol.framing", "protocol.fields", "protocol.limits"):
            self.add_finding(passed, None)
        if decoded.notes:
            self.add_finding("protocol.unicode", "; ".join(decoded.notes))
        return decoded

    def add_finding(self, rule: str, problem: str | None) -> None:
        self.findings.add(rule, f"{self.case.name}: {problem}" if problem else None)

    def _check_process(self, run: Finished, fixture_run: FixtureRun) -> None:
        """Check the rules that do not depend on the response."""
        if run.cause is Cause.EXITED:
            left = run.swept or run.pipe_left_open or run.lost
            self.add_finding("robust.leftovers", "processes are still running after it exits" if left else None)
        elif run.cause is not Cause.OUTPUT_LIMIT:  # the other causes stop the plugin with SIGTERM
            late = f"still running {GRACE.total_seconds():g} s after SIGTERM"
            self.add_finding("robust.sigterm", late if run.signal == signal.SIGKILL else None)
        leftover_files = ", ".join(fixture_run.leftover_files)
        self.add_finding(
            "robust.files", f"files left in its working directory: {leftover_files}" if leftover_files else None
        )
        excess = f"{run.stderr_total} bytes on stderr, {len(run.stderr)} are stored" if run.stderr_truncated else None
        self.add_finding("robust.stderr", excess)

    def _check_exit(self, run: Finished, decoded: PluginResponse | InvalidResponse) -> None:
        if run.signal is not None:
            self.add_finding("protocol.exit_code", f"killed by signal {run.signal}")
        elif isinstance(decoded, PluginResponse):
            wrong = f"exit code {run.exit_code} with an ok response" if decoded.ok and run.exit_code else None
            self.add_finding("protocol.exit_code", wrong)

    def _check_events(self, response: PluginResponse) -> None:
        if self.command is None:
            return
        declared = {emitted.event for emitted in self.command.values.emit}
        is_open = any(event.startswith(CONFIGURED) for event in declared)
        schema = full_schema(self.command.output_schema) if self.command.output_schema else None
        for event in response.events:
            is_declared = is_open or event.type in declared
            problem = f"emits {event.type}, which is not in `values.emit`"
            self.add_finding("exemplary.declared_events", None if is_declared else problem)
            if schema is not None:
                self.add_finding("exemplary.output_schema", "; ".join(schema_violations(schema, event.payload)) or None)

    # ── mutated requests ────────────────────────────────────────────────────────────────────────────────────────────

    def run_mutations(self, unchanged: PluginResponse | Failed, *, may_drop: bool) -> None:
        """Send the request with each mutation; with `may_drop`, also without its optional fields."""
        was_ok = isinstance(unchanged, PluginResponse) and unchanged.ok
        unknown = self._expect_response("protocol.unknown_fields", with_unknown_fields)
        if unknown is not None:
            is_ok = isinstance(unknown, PluginResponse) and unknown.ok
            word = {True: "ok", False: "not ok"}
            problem = None if is_ok == was_ok else f"responds {word[is_ok]}, but {word[was_ok]} without them"
            self.add_finding("protocol.unknown_fields", problem)
        self._expect_response("protocol.unicode", partial(with_extra_payload, value=UNICODE))
        self._expect_response("robust.large_input", partial(with_extra_payload, value="x" * LARGE_INPUT_BYTES))
        if may_drop:
            self._expect_response("protocol.missing_fields", without_optional_fields)
        self._expect_final_failure("robust.other_protocol", with_other_protocol)
        if self.plugin.manifest.config_keys.required:
            self._expect_final_failure("robust.configuration", without_config)
        self._check_secrets()
        self._check_stop()
        if self.command is not None and self.command.idempotent:
            self._check_idempotence()

    def _expect_response(self, rule: str, mutate: Mutation) -> PluginResponse | Failed | None:
        """Check that the mutated request gets a valid response."""
        response = self.check_response(run_fixture(self.plugin, self.case, mutate=mutate, grace=GRACE), rule)
        if response is not None:
            self.add_finding(rule, None)
        return response

    def _expect_final_failure(self, rule: str, mutate: Mutation) -> None:
        """Check that the mutated request fails without retry."""
        fixture_run = run_fixture(self.plugin, self.case, mutate=mutate, grace=GRACE)
        is_final = isinstance(fixture_run.local.verdict.outcome, Failed)
        self.add_finding(
            rule, None if is_final else f"verdict {fixture_run.shown['verdict']}: {fixture_run.shown['error'] or 'ok'}"
        )

    def _check_secrets(self) -> None:
        keys = (
            *self.plugin.manifest.config_keys.required,
            *self.plugin.manifest.config_keys.optional,
            *self.case.config,
        )
        secret = {key: CANARY for key in keys if looks_secret(key)} or {SECRET_KEY: CANARY}
        fixture_run = run_fixture(self.plugin, self.case, mutate=partial(with_config, more=secret), grace=GRACE)
        run, mask = fixture_run.local.run, Mask([CANARY])
        if isinstance(run, Finished):
            outputs = {"its response": run.stdout, "stderr": run.stderr}
            leaks = [where for where, raw in outputs.items() if mask(text := raw.decode("utf-8", "replace")) != text]
            self.add_finding(
                "robust.secrets", f"a secret of its configuration is in {' and '.join(leaks)}" if leaks else None
            )

    def _check_stop(self) -> None:
        async def request_stop(stop: StopRequest) -> None:
            await trio.sleep(STOP_AFTER_SECONDS)
            stop.request("SIGTERM check")

        fixture_run = run_fixture(self.plugin, self.case, grace=GRACE, stop=request_stop)
        if isinstance(fixture_run.local.run, Finished):
            self.add_finding("robust.sigterm", None)
            self._check_process(fixture_run.local.run, fixture_run)

    def _check_idempotence(self) -> None:
        attempts = [evolve(self.case, attempt=attempt) for attempt in (1, 2)]
        first, second = (
            _comparable_response(fixture_run)
            for fixture_run in run_fixture_sequence(self.plugin, attempts, job_id=CANARY, grace=GRACE)
        )
        self.add_finding("exemplary.idempotent", None if first == second else f"first {first}, then {second}")


def _rule_for(invalid: InvalidResponse, stdout: bytes) -> str:
    if invalid.final:
        return "protocol.limits"
    return "protocol.fields" if isinstance(response_of(stdout), dict) else "protocol.framing"


def _comparable_response(fixture_run: FixtureRun) -> tuple[Any, ...]:
    """Return the parts of a response that must be equal in two attempts of one job."""
    run = fixture_run.local.run
    response = response_of(run.stdout) if isinstance(run, Finished) else None
    if not isinstance(response, dict):
        return (response,)
    events = [event for event in response.get("events") or () if isinstance(event, dict)]
    return (response.get("status"), *((event.get("type"), event.get("dedupe_key")) for event in events))


# ── mutations of requests ───────────────────────────────────────────────────────────────────────────────────────────


def with_unknown_fields(request: dict[str, Any]) -> dict[str, Any]:
    unknown = {"an_unknown_field": {"nested": [1, None, "x"]}}
    event = {"event": {**request["event"], **unknown}} if "event" in request else {}
    return {**request, **event, **unknown}


def with_extra_payload(request: dict[str, Any], value: str) -> dict[str, Any]:
    """Add a value to the payload, in every place where a plugin can read the payload."""

    def more(payload: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**(payload or {}), "an_additional_value": value}

    if "event" not in request:
        return {**request, "payload": more(request.get("payload"))}
    event = {**request["event"], "payload": more(request["event"].get("payload"))}
    return {**request, "event": event, "payload": event}


def with_config(request: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**request, "config": {**request["config"], **more}}


def with_other_protocol(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "protocol": 99}


def without_optional_fields(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in ("payload", "event", "context")}


def without_config(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "config": {}}
