"""What `plugin check` sees by running a plugin: each safe request as it is, then with one thing changed at a time.

Safe is what a fixture says, a command that only reads, and what the caller allows. What a rule asks is in `rules`.
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

from ductile.config.views.show import looks_secret
from ductile.core.errors import PluginRejected
from ductile.core.model import Failed
from ductile.core.secret import Mask
from ductile.core.units import format_duration
from ductile.devkit.checks.mutations import (
    with_another_protocol,
    with_config,
    with_more_payload,
    with_unknown_fields,
    without_config,
    without_optional_fields,
)
from ductile.devkit.checks.rules import Notebook
from ductile.devkit.checks.schemas import full_schema, misfits
from ductile.devkit.fixtures.fixtures import Fixture, FixtureInvalid
from ductile.devkit.fixtures.runner import Played, play, play_in_a_row
from ductile.devkit.local.attempt import Alter
from ductile.devkit.local.report import answer_of
from ductile.engine.judge import CONFIG_ERROR
from ductile.engine.process.run import Cause, Finished, StopRequest
from ductile.plugin.manifest import Command, CommandType
from ductile.plugin.protocol import Garbled, PluginResponse, decode_response
from ductile.plugin.registry import Plugin

CANARY = "dctl-canary-5c0f7e1b9d"
SECRET_KEY = "canary_secret"
UNICODE = 'ünïcödé 日本語 🎈 \u202eabc \u0000 \u2028 \\ " \n'
LARGE = 2 << 20
CONFIGURED = "<"
"""How an event is declared whose type the configuration names: `<configured event_type>`."""
GRACE = timedelta(seconds=2)
STOP_AFTER_SECONDS = 0.5
"""Long enough for a plugin to be at work, or to be done."""


def try_out(
    plugin: Plugin,
    fixtures: list[Fixture],
    config: Mapping[str, Any],
    book: Notebook,
    *,
    run_writes: bool,
    deadline: timedelta | None = None,
) -> None:
    """The notebook has everything that shows when the plugin runs. This process must be hardened."""
    cases = [*fixtures, *_made_up(plugin, {one.command for one in fixtures}, config, run_writes=run_writes)]
    cases = [evolve(one, deadline=deadline) for one in cases] if deadline else cases
    book.note("protocol.runs", None if cases else _why_nothing(plugin, config))
    before = dict(_files(plugin))
    try:
        _try_all(plugin, cases, book, run_writes=run_writes)
    except PluginRejected as rejected:
        book.note("robust.files", f"after a run it can no longer be loaded: {rejected}")
    after = dict(_files(plugin))
    changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
    book.note("robust.files", f"changed in its own folder: {', '.join(changed)}" if changed else None)


def _try_all(plugin: Plugin, cases: list[Fixture], book: Notebook, *, run_writes: bool) -> None:
    tried: set[str] = set()
    for case in cases:
        trial = Trial(plugin, plugin.manifest.commands.get(case.command), case, book)
        try:
            answered = trial.as_it_is()
        except FixtureInvalid as error:
            trial.note("robust.fixtures", str(error))
            continue
        if answered is not None and case.command not in tried:
            tried.add(case.command)
            trial.with_changes(answered, may_drop=run_writes or trial.only_reads)


def _made_up(plugin: Plugin, known: set[str], config: Mapping[str, Any], *, run_writes: bool) -> Iterator[Fixture]:
    """Bare requests for the commands that no fixture is about; none where the configuration does not suffice."""
    if plugin.manifest.missing_keys(config):
        return
    for command in plugin.manifest.commands.values():
        if command.name not in known and (run_writes or command.type is CommandType.READ):
            yield Fixture(name=command.name, command=command.name, config=config, payload={})


def _why_nothing(plugin: Plugin, config: Mapping[str, Any]) -> str:
    missing = plugin.manifest.missing_keys(config)
    why = f"required configuration is missing: {', '.join(missing)}" if missing else "its commands write"
    return f"no command can be run: there are no fixtures, and {why}"


def _files(plugin: Plugin) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every file of the plugin with what gives a change away."""
    for path in plugin.folder.rglob("*"):
        with suppress(OSError):  # what goes away in this moment is not there
            status = path.lstat()
            if "__pycache__" not in path.parts and not stat.S_ISDIR(status.st_mode):
                yield path.relative_to(plugin.folder).as_posix(), (status.st_mtime_ns, status.st_size)


@frozen
class Trial:
    """One request and what is noted about the plugin's ways with it."""

    plugin: Plugin
    command: Command | None
    case: Fixture
    book: Notebook = field(repr=False)

    @property
    def only_reads(self) -> bool:
        return self.command is not None and self.command.type is CommandType.READ

    def as_it_is(self) -> PluginResponse | Failed | None:
        """What the plugin answered to the plain request, everything about it noted; None if nothing that counts."""
        played = play(self.plugin, self.case, grace=GRACE)
        run = played.local.run
        if not isinstance(run, Finished):
            self.note("protocol.runs", f"cannot start: {played.shown['error']}")
            return None
        if self.case.expect:
            self.note("robust.fixtures", "; ".join(played.differences) or None)
        answer = self.answer(played)
        if isinstance(answer, PluginResponse):
            self._events(answer)
        return answer

    def answer(self, played: Played, rule: str | None = None) -> PluginResponse | Failed | None:
        """The answer if it counts. What is wrong with it is noted under `rule`, or under what it is."""
        run = played.local.run
        if not isinstance(run, Finished):
            self.note(rule or "protocol.runs", f"cannot start: {played.shown['error']}")
            return None
        self._manners(run, played)
        if run.cause is Cause.TIMED_OUT:
            self.note(rule or "protocol.deadline", f"no answer within {format_duration(self.case.deadline)}")
            return None
        self.note("protocol.deadline", None)
        if run.cause is Cause.OUTPUT_LIMIT:
            self.note(rule or "protocol.limits", f"more than {len(run.stdout)} bytes on stdout")
            return None
        if run.exit_code == CONFIG_ERROR and not run.stdout.strip():
            return Failed(f"exit code {CONFIG_ERROR}")
        decoded = decode_response(run.stdout)
        if rule is None:
            self._exit(run, decoded)
        if isinstance(decoded, Garbled):
            self.note(rule or _rule_for(decoded, run.stdout), decoded.reason)
            return None
        for kept in ("protocol.framing", "protocol.fields", "protocol.limits"):
            self.note(kept, None)
        if decoded.notes:
            self.note("protocol.unicode", "; ".join(decoded.notes))
        return decoded

    def note(self, rule: str, complaint: str | None) -> None:
        self.book.note(rule, f"{self.case.name}: {complaint}" if complaint else None)

    def _manners(self, run: Finished, played: Played) -> None:
        """What every run can be asked, whatever it answered."""
        if run.cause is Cause.EXITED:
            left = run.swept or run.pipe_held or run.lost
            self.note("robust.leftovers", "left processes behind" if left else None)
        elif run.cause is not Cause.OUTPUT_LIMIT:  # then it was told to end
            late = f"still there {GRACE.total_seconds():g} s after SIGTERM"
            self.note("robust.sigterm", late if run.signal == signal.SIGKILL else None)
        litter = ", ".join(played.litter)
        self.note("robust.files", f"left in its working directory: {litter}" if litter else None)
        much = f"{run.stderr_total} bytes on stderr, {len(run.stderr)} are kept" if run.stderr_truncated else None
        self.note("robust.stderr", much)

    def _exit(self, run: Finished, decoded: PluginResponse | Garbled) -> None:
        if run.signal is not None:
            self.note("protocol.exit_code", f"died by signal {run.signal}")
        elif isinstance(decoded, PluginResponse):
            wrong = f"exit code {run.exit_code} with an ok answer" if decoded.ok and run.exit_code else None
            self.note("protocol.exit_code", wrong)

    def _events(self, response: PluginResponse) -> None:
        if self.command is None:
            return
        declared = {one.event for one in self.command.values.emit}
        is_open = any(event.startswith(CONFIGURED) for event in declared)
        schema = full_schema(self.command.output_schema) if self.command.output_schema else None
        for event in response.events:
            is_declared = is_open or event.type in declared
            told = f"emits {event.type}, which `values.emit` does not name"
            self.note("exemplary.declared_events", None if is_declared else told)
            if schema is not None:
                self.note("exemplary.output_schema", "; ".join(misfits(schema, event.payload)) or None)

    # ── one thing changed ───────────────────────────────────────────────────────────────────────────────────────────

    def with_changes(self, plain: PluginResponse | Failed, *, may_drop: bool) -> None:
        """The same request in other clothes; `may_drop` also without what it carried."""
        was_ok = isinstance(plain, PluginResponse) and plain.ok
        unknown = self._changed("protocol.unknown_fields", with_unknown_fields)
        if unknown is not None:
            is_ok = isinstance(unknown, PluginResponse) and unknown.ok
            word = {True: "ok", False: "not ok"}
            told = None if is_ok == was_ok else f"answers {word[is_ok]}, but {word[was_ok]} without them"
            self.note("protocol.unknown_fields", told)
        self._changed("protocol.unicode", partial(with_more_payload, value=UNICODE))
        self._changed("robust.large_input", partial(with_more_payload, value="x" * LARGE))
        if may_drop:
            self._changed("protocol.missing_fields", without_optional_fields)
        self._final("robust.other_protocol", with_another_protocol)
        if self.plugin.manifest.config_keys.required:
            self._final("robust.configuration", without_config)
        self._secrets()
        self._stop()
        if self.command is not None and self.command.idempotent:
            self._twice()

    def _changed(self, rule: str, alter: Alter) -> PluginResponse | Failed | None:
        """The changed request is answered, well or badly, but answered."""
        answer = self.answer(play(self.plugin, self.case, alter=alter, grace=GRACE), rule)
        if answer is not None:
            self.note(rule, None)
        return answer

    def _final(self, rule: str, alter: Alter) -> None:
        """The changed request is refused, and nobody tries again."""
        played = play(self.plugin, self.case, alter=alter, grace=GRACE)
        is_final = isinstance(played.local.verdict.outcome, Failed)
        self.note(rule, None if is_final else f"verdict {played.shown['verdict']}: {played.shown['error'] or 'ok'}")

    def _secrets(self) -> None:
        keys = (
            *self.plugin.manifest.config_keys.required,
            *self.plugin.manifest.config_keys.optional,
            *self.case.config,
        )
        secret = {key: CANARY for key in keys if looks_secret(key)} or {SECRET_KEY: CANARY}
        played = play(self.plugin, self.case, alter=partial(with_config, more=secret), grace=GRACE)
        run, mask = played.local.run, Mask([CANARY])
        if isinstance(run, Finished):
            said = {"its answer": run.stdout, "stderr": run.stderr}
            leaks = [where for where, raw in said.items() if mask(text := raw.decode("utf-8", "replace")) != text]
            self.note("robust.secrets", f"a secret of its configuration is in {' and '.join(leaks)}" if leaks else None)

    def _stop(self) -> None:
        async def ask(stop: StopRequest) -> None:
            await trio.sleep(STOP_AFTER_SECONDS)
            stop.request("SIGTERM trial")

        played = play(self.plugin, self.case, grace=GRACE, stop=ask)
        if isinstance(played.local.run, Finished):
            self.note("robust.sigterm", None)
            self._manners(played.local.run, played)

    def _twice(self) -> None:
        attempts = [evolve(self.case, attempt=attempt) for attempt in (1, 2)]
        first, second = (_gist(played) for played in play_in_a_row(self.plugin, attempts, job_id=CANARY, grace=GRACE))
        self.note("exemplary.idempotent", None if first == second else f"first {first}, then {second}")


def _rule_for(garbled: Garbled, stdout: bytes) -> str:
    if garbled.final:
        return "protocol.limits"
    return "protocol.fields" if isinstance(answer_of(stdout), dict) else "protocol.framing"


def _gist(played: Played) -> tuple[Any, ...]:
    """What must not differ between two attempts of one job."""
    run = played.local.run
    answer = answer_of(run.stdout) if isinstance(run, Finished) else None
    if not isinstance(answer, dict):
        return (answer,)
    events = [event for event in answer.get("events") or () if isinstance(event, dict)]
    return (answer.get("status"), *((event.get("type"), event.get("dedupe_key")) for event in events))
