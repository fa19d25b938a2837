"""The catalogue of hostile plugins: every known misbehaviour, how to cause it, and the expected outcome.

Each folder next to this file is one plugin: a manifest and an executable. The `config` of the request selects the
variant. Tests of single processes and of the whole service use this list.
"""

import os
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

from ductile.engine.process.limits import ResourceLimits

ZOO = Path(__file__).parent
MIB = 1 << 20
STDOUT_CAP = 10 * MIB


class Expected(StrEnum):
    """The expected outcome of one attempt."""

    SUCCESS = "success"
    RETRY = "retry"  # failed; retried until the attempts are used up
    FINAL = "final"  # failed; not retried
    TIMED_OUT = "timed_out"
    SPAWN_ERROR = "spawn_error"  # not started; retried like any failure
    SUCCESS_OR_TIMED_OUT = "success_or_timed_out"  # exactly one of the two
    DRAIN = "drain"  # the service drains; the job is retried after its restart
    RECOVERY = "recovery"  # the service dies; the job is retried after its restart, as another attempt


@frozen(kw_only=True)
class HostilePlugin:
    """One misbehaving plugin. `runs_alone`: it needs its own service. `on_a_copy`: it damages its folder.

    `error` is part of the error of its job. `routed` is the number of follow-up jobs if each event type has one route
    and `zoo.large` has ten. `keeps_state` is True if its state updates are stored.
    """

    folder: str
    expected: Expected
    variant: str = ""
    error: str = ""
    routed: int = 0
    keeps_state: bool = False
    config: Mapping[str, Any] = Factory(dict)
    limits: ResourceLimits | None = None
    request_bytes: int = 0
    breakage: str | None = None
    runs_alone: bool = False
    on_a_copy: bool = False
    note: str = ""

    def __str__(self) -> str:
        return f"{self.folder}-{self.variant}" if self.variant else self.folder

    @property
    def id(self) -> str:
        return self.folder[:3].upper()

    @property
    def path(self) -> Path:
        return ZOO / self.folder


def break_entrypoint(entrypoint: Path, how: str) -> None:
    """Make an entrypoint unspawnable in one of the ways of Z50. Call this on a copy only."""
    match how:
        case "missing_interpreter":
            entrypoint.write_text("#!/nowhere/interpreter\n")
        case "crlf_shebang":
            entrypoint.write_bytes(b"#!/bin/sh\r\necho hello\r\n")
        case "no_shebang":
            entrypoint.write_text("echo hello\n")
        case "not_executable":
            entrypoint.chmod(0o644)
        case "deleted":
            entrypoint.unlink()
        case "directory":
            entrypoint.unlink()
            entrypoint.mkdir()
        case "fifo":
            entrypoint.unlink()
            os.mkfifo(entrypoint, 0o755)
        case _:
            raise ValueError(how)


def copy_plugin(plugin: HostilePlugin, into: Path) -> Path:
    """Copy the plugin's folder, and break the entrypoint if the plugin has a `breakage`."""
    folder = into / plugin.folder
    shutil.copytree(plugin.path, folder)
    if plugin.breakage is not None:
        break_entrypoint(folder / "run", plugin.breakage)
    return folder


@frozen
class _Outcome:
    """An expected outcome with its error or its effects."""

    expected: Expected
    error: str = ""
    routed: int = 0
    keeps_state: bool = False

    def plugin(self, folder: str, **more: Any) -> HostilePlugin:
        return HostilePlugin(
            folder=folder,
            expected=self.expected,
            error=self.error,
            routed=self.routed,
            keeps_state=self.keeps_state,
            **more,
        )


def _one(folder: str, outcome: _Outcome, note: str = "", **more: Any) -> list[HostilePlugin]:
    return [outcome.plugin(folder, note=note, **more)]


def _variants(folder: str, outcomes: Mapping[str, _Outcome], note: str = "", **more: Any) -> list[HostilePlugin]:
    return [
        outcome.plugin(folder, variant=name, config={"variant": name}, note=note, **more)
        for name, outcome in outcomes.items()
    ]


def _sizes(folder: str, key: str, outcomes: Mapping[int, _Outcome], note: str = "") -> list[HostilePlugin]:
    return [
        outcome.plugin(folder, variant=str(size), config={key: size}, note=note) for size, outcome in outcomes.items()
    ]


def _retry(error: str) -> _Outcome:
    return _Outcome(Expected.RETRY, error)


def _final(error: str) -> _Outcome:
    return _Outcome(Expected.FINAL, error)


_S, _STATE_STORED, _T = (
    _Outcome(Expected.SUCCESS),
    _Outcome(Expected.SUCCESS, keeps_state=True),
    _Outcome(Expected.TIMED_OUT, "timed out"),
)
_NOT_UTF8 = _retry("expected UTF-8")
_NO_OUTPUT = _retry("no output on stdout")

HOSTILE_PLUGINS: tuple[HostilePlugin, ...] = (
    # --- content of stdout -------------------------------------------------------------------------------------------
    *_one("z01_no_output", _NO_OUTPUT),
    *_one("z02_random_bytes", _retry("stdout is not one JSON object"), "a prefix is stored as escaped text"),
    *_one("z03_banner_first", _retry("found 'Welcome to my plugin")),
    *_one("z04_two_responses", _retry("two JSON values, only one is allowed (line 2)")),
    *_one("z05_surrounding_whitespace", _S),
    *_variants(
        "z06_not_an_object",
        {
            "array": _retry("must be one JSON object, not a list"),
            "string": _retry("must be one JSON object, not the text 'ok'"),
            "number": _retry("must be one JSON object, not the number 5"),
            "null": _retry("must be one JSON object, not null"),
        },
    ),
    *_variants("z07_byte_order_mark", {"utf8": _retry("starts with a byte order mark")}),
    *_variants("z08_other_encoding", {"utf16": _NOT_UTF8, "utf32": _NOT_UTF8, "gzip": _retry("UTF-8")}),
    *_variants("z09_broken_utf8", {"latin1": _retry("byte 0xe9 is not UTF-8")}, "stored escaped"),
    *_variants(
        "z10_lone_surrogate",
        {"result": _S, "event": _Outcome(Expected.SUCCESS, routed=1), "state": _STATE_STORED},
        "replaced by U+FFFD, with a warning",
    ),
    *_variants("z11_nul_in_string", {"all": _STATE_STORED}, "stored and returned intact"),
    *_variants(
        "z12_not_a_number",
        {
            "nan": _retry("NaN is not JSON"),
            "infinity": _retry("Infinity is not JSON"),
            "minus_infinity": _retry("-Infinity is not JSON"),
        },
    ),
    *_variants("z13_infinite_exponent", {"positive": _retry("'1e999' is too large for a number")}),
    *_variants(
        "z14_huge_integers",
        {
            "exact": _Outcome(Expected.SUCCESS, routed=1, keeps_state=True),
            "too_many_digits": _retry("a number of more than 4,300 digits"),
        },
        "exact in state and event",
    ),
    *_variants(
        "z15_nested",
        {"64": _STATE_STORED, "65": _retry("nested deeper than 64"), "100000": _retry("nested deeper than 64")},
    ),
    *_variants(
        "z16_duplicate_keys",
        {"top": _retry('duplicate key "status"'), "inside": _retry('duplicate key "a"')},
    ),
    *_variants("z17_wrong_case", {"status": _retry("the key 'Status' must be written 'status'")}),
    *_variants("z18_unknown_keys", {"extra": _S}),
    *_variants(
        "z19_bad_status",
        {
            "missing": _retry("status must be 'ok' or 'error', not missing"),
            "upper": _retry("status must be 'ok' or 'error', not the text 'OK'"),
            "true": _retry("status must be 'ok' or 'error', not true"),
        },
    ),
    *_variants("z20_no_result", dict.fromkeys(("missing", "blank"), _retry("result is missing or blank"))),
    *_variants("z21_no_error_text", dict.fromkeys(("missing", "blank"), _retry("error is missing or blank"))),
    *_variants(
        "z22_bad_retry",
        {
            "text": _retry("retry must be true or false, not the text 'false'"),
            "zero": _retry("retry must be true or false, not the number 0"),
            "null": _retry("no luck"),
        },
        "null is the same as absent",
    ),
    *_one("z23_error_final", _final("no such account")),
    *_one("z24_error_retry", _retry("try later")),
    *_variants(
        "z25_bad_events",
        {
            "object": _retry("events must be a list, not an object"),
            "null_item": _retry("events[1] must be an object with type and payload, not null"),
            "no_type": _retry("events[0].type must be text that is not blank, not missing"),
            "number_type": _retry("events[0].type must be text that is not blank, not the number 5"),
            "blank_type": _retry("events[0].type must be text that is not blank, not the text ''"),
            "list_payload": _retry("events[0].payload must be an object, not a list"),
        },
        "nothing is routed, no state is written",
    ),
    *_sizes(
        "z26_many_events",
        "events",
        {
            1_000: _Outcome(Expected.SUCCESS, routed=1_000),
            1_001: _final("1001 events, more than the 1000 allowed"),
            10_000: _final("10000 events, more than the 1000 allowed"),
        },
        "over the limit: nothing is routed",
    ),
    *_sizes(
        "z27_large_payload",
        "bytes",
        dict.fromkeys((MIB, MIB + 1), _Outcome(Expected.SUCCESS, routed=10)),
        "a payload may be as large as stdout",
    ),
    *_variants(
        "z28_dedupe_keys",
        {
            "512": _Outcome(Expected.SUCCESS, routed=1),
            "513": _retry("events[0].dedupe_key is longer than 512 bytes"),
            "number": _retry("events[0].dedupe_key must be text, not the number 5"),
            "blank": _Outcome(Expected.SUCCESS, routed=1),
        },
        "a blank key is the same as no key",
    ),
    *_one("z29_forged_event", _Outcome(Expected.SUCCESS, routed=1), "the core sets event_id, source and timestamp"),
    *_sizes(
        "z30_large_state",
        "bytes",
        {MIB: _STATE_STORED, MIB + 1: _final("state_updates has 1048577 bytes, more than the 1048576 allowed")},
        "over the limit: events are not routed either",
    ),
    *_variants(
        "z31_bad_state",
        {
            "list": _retry("state_updates must be an object, not a list"),
            "string": _retry("state_updates must be an object, not the text 'x'"),
            "null": _S,
            "many_keys": _final("bytes, more than the 1048576 allowed"),
        },
        "null is the same as absent",
    ),
    *_variants("z32_excessive_logs", {"many": _S, "bad_level": _S, "long": _S}, "truncated with a mark"),
    *_one("z33_forged_log_lines", _S, "stored unchanged, one escaped line in the log of the core"),
    # --- amount, speed and stream of output --------------------------------------------------------------------------
    *_sizes("z34_exactly_at_the_cap", "bytes", {STDOUT_CAP: _S}),
    *_sizes(
        "z35_one_byte_over",
        "bytes",
        {STDOUT_CAP: _retry("output limit: more than 10485760 bytes")},
        "killed immediately; the prefix is stored",
    ),
    *_one(
        "z36_endless_stdout",
        _retry("output limit: more than 10485760 bytes"),
        "killed immediately; the prefix is stored",
    ),
    *_one("z37_large_stderr", _S, "the last 64 KiB are stored and marked as truncated"),
    *_one("z38_one_byte_per_second", _T),
    *_one("z39_byte_by_byte", _S),
    *_one("z40_wrong_stream", _NO_OUTPUT),
    *_one("z41_never_reads", _S, request_bytes=2 * MIB),
    *_one("z42_closes_stdin", _S, request_bytes=2 * MIB),
    *_one("z43_closes_stdout_early", _S),
    *_one("z44_closes_all_and_hangs", _T),
    *_one("z45_responds_and_hangs", _T, "its response is stored for diagnosis, nothing is routed"),
    # --- exits, signals, starts --------------------------------------------------------------------------------------
    *_one("z46_ok_but_exit_1", _retry("exit code 1 after a response with status ok")),
    *_one("z47_exit_78", _final("exit code 78; plugin produced no output")),
    *_one("z48_ok_but_exit_78", _final("exit code 78 after a response with status ok")),
    *(
        _retry(f"killed by {name}").plugin("z49_kills_itself", variant=name, config={"signal": name}, note="no core")
        for name in ("SIGSEGV", "SIGABRT", "SIGKILL")
    ),
    *(
        _Outcome(Expected.SPAWN_ERROR, error).plugin(
            "z50_unspawnable",
            variant=how,
            breakage=how,
            on_a_copy=True,
            note="broken after loading; never blocks",
        )
        for how, error in {
            "missing_interpreter": "its interpreter /nowhere/interpreter does not exist",
            "crlf_shebang": "its #! line ends with a carriage return",
            "no_shebang": "neither a program nor a script with a #! line",
            "not_executable": "entrypoint is not executable; run chmod +x",
            "deleted": "does not exist",
            "directory": "entrypoint is not a regular file",
            "fifo": "entrypoint is not a regular file",
        }.items()
    ),
    *_one("z51_ignores_sigterm", _T, "SIGKILL after the grace period"),
    *_one("z52_responds_on_sigterm", _T, "a response after the deadline does not count"),
    *_one("z53_stops_itself", _T, "SIGTERM, SIGCONT, then SIGKILL"),
    # --- descendants and resources -----------------------------------------------------------------------------------
    *_one(
        "z54_child_keeps_pipes", _S, "finishes within a second of the leader's exit; the child is killed with a warning"
    ),
    *_one("z55_daemon_keeps_pipes", _S, "as for a child"),
    *_one("z56_detached_daemon", _S, "found as an adopted child and killed with a warning"),
    *_one(
        "z57_fork_bomb",
        _S,
        "all children are killed; the limit does not apply to root",
        limits=ResourceLimits(processes=200),
    ),
    *_one("z58_exhausts_memory", _retry("stderr: MemoryError"), limits=ResourceLimits(address_space=512 * MIB)),
    _retry("Too many open files").plugin(
        "z59_exhausts_files_and_disk",
        variant="files",
        config={"variant": "files"},
        limits=ResourceLimits(open_files=256),
    ),
    _retry("File too large").plugin(
        "z59_exhausts_files_and_disk",
        variant="disk",
        config={"variant": "disk"},
        limits=ResourceLimits(file_size=8 * MIB),
    ),
    HostilePlugin(
        folder="z60_kills_its_parent",
        variant="SIGTERM",
        config={"signal": "SIGTERM"},
        runs_alone=True,
        expected=Expected.DRAIN,
    ),
    HostilePlugin(
        folder="z60_kills_its_parent",
        variant="SIGKILL",
        config={"signal": "SIGKILL"},
        runs_alone=True,
        expected=Expected.RECOVERY,
        note="dead after its last attempt",
    ),
    *_one("z61_inspects_environment", _S, "only the allowed environment and descriptors 0 to 2"),
    *_one("z62_exits_at_deadline", _Outcome(Expected.SUCCESS_OR_TIMED_OUT, "timed out"), config={"seconds": 1.0}),
    *_one("z63_uses_every_core", _T, "the event loop stays responsive"),
    *_one("z64_triggers_itself", _S, "with a route from zoo.again to itself, it stops at the hop limit"),
    HostilePlugin(
        folder="z64_triggers_itself",
        variant="fan_out",
        config={"fan_out": 10},
        expected=Expected.SUCCESS,
        note="with the same route, it stops at the job limit of the tree",
    ),
    *(
        HostilePlugin(
            folder="z65_deletes_its_own_files",
            variant=target,
            config={"target": target, "disposable": True},
            on_a_copy=True,
            expected=Expected.SUCCESS,
            note="the next run is a clean error, or the changed fingerprint is rejected or reported",
        )
        for target in ("cwd", "manifest", "entrypoint")
    ),
    *_one("z66_writes_after_close", _S, "late bytes are ignored"),
)
