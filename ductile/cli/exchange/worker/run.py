"""`ductile exchange run`: handle the messages of a topic with a command."""

import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import output
from ductile.cli.exchange import options
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ductile.core.message import ReplyTopics
    from ductile.exchange.worker.host import WorkerHost
    from ductile.exchange.worker.values import HostSettings, WorkSettings

DEFAULT_TIMEOUT_SECONDS = 60.0
LEASE_MARGIN_SECONDS, LEASE_WITHOUT_TIMEOUT_SECONDS = 30.0, 300.0
NOTHING_CAME_EXIT = 75


@click.command("run")
@click.option("--topic", required=True, help="Handle the messages of this topic.")
@click.option("--success-topic", help="Topic of successful replies. Default for X.request: X.done.")
@click.option("--failure-topic", help="Topic of failed replies. Default for X.request: X.failed.")
@click.option(
    "--timeout-topic", help="Topic of replies that report a timeout. Default: the topic with `.timed_out` added."
)
@click.option("--timeout", help="Time limit of the command, such as 5m; 0s is none. Default: 60s.")
@click.option("--timeout-seconds", type=click.FloatRange(min=0, min_open=True), help="The same in seconds.")
@click.option("--lease", help="Lease of a claim. Renewed every third of it. Default: the time limit and 30s.")
@click.option("--lease-seconds", type=float, help="The same in seconds.")
@click.option("--group", "--runner-name", "worker_group", help="Name of this kind of worker. Default: TOPIC-worker.")
@click.option("--once", is_flag=True, help="Handle one message, then exit.")
@click.option("--wait", "wait", help="With --once: exit with 75 if no message comes within this time.")
@click.option("--max", "max_messages", type=click.IntRange(min=1), help="Handle this many messages, then exit.")
@click.option("--idle-exit", help="Exit when no message has come for this time.")
@click.option("--concurrency", type=click.IntRange(1, 100), default=1, show_default=True, help="Messages at once.")
@click.option("--drain", default="10s", show_default=True, help="After a signal: time for running commands to finish.")
@click.option("--replace-invalid", is_flag=True, help="Replace output that is not UTF-8 instead of failing.")
@click.option("--wait-timeout-ms", type=int, help="Accepted for Plugboard; has no effect.")
@click.option("--idle-sleep-ms", type=int, help="Accepted for Plugboard; has no effect.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@options.service
def run(topic: str, command: tuple[str, ...], as_json: bool, **flags: Any) -> int:
    """Handle the messages of a topic with a command: the body is its stdin, its stdout is the reply.

    The command gets the environment of this process without API keys, and DUCTILE_MESSAGE_ID, DUCTILE_CONVERSATION_ID,
    DUCTILE_TOPIC, DUCTILE_CLAIM_ID, DUCTILE_DELIVERY and DUCTILE_META_KEY for each `--meta` of the message.

    Exit code 0 of the command publishes stdout on the success topic. 75 returns the message to its topic with a growing
    delay. Any other code publishes stderr, else stdout, on the failure topic.

    SIGTERM and Ctrl-C claim nothing more, let running commands finish (--drain), return the rest to the topic and exit
    with 0. A second signal stops immediately. Five commands in a row that cannot be started exit with 78.

    Example: ductile exchange run --topic review.request -- ./review.sh
    """
    import trio

    from ductile.cli.base.connect import client_for
    from ductile.cli.base.run_until_interrupted import unwrap
    from ductile.cli.exchange.worker.claim_service import HttpClaimService
    from ductile.core.message import checked_topic
    from ductile.engine.process.procfs import harden_self
    from ductile.exchange.worker.host import WorkerHost

    topics = _topics(checked_topic(topic), flags)
    timeout_seconds = _timeout_seconds(flags)
    service = HttpClaimService(
        client=client_for(flags),
        topic=topic,
        worker_group=flags["worker_group"] or f"{topic}-worker",
        worker_instance_id=f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}",
        lease_seconds=_lease_seconds(flags, timeout_seconds),
    )
    work, settings = _work_settings(command, topics, timeout_seconds, flags), _host_settings(flags)
    for refused in harden_self():
        output.detail(f"the host does not allow it: {refused}")

    def make_host() -> WorkerHost:
        return WorkerHost(service=service, work=work, settings=settings, report=output.note)

    try:
        code, handled = trio.run(_run, make_host)
    except BaseExceptionGroup as group:
        raise unwrap(group) from None
    if as_json:
        click.echo(output.format_json({"topic": topic, "handled": handled, "exit_code": code}))
    else:
        output.note(f"{output.format_count(handled, 'message')} handled")
    return code


async def _run(make_host: "Callable[[], WorkerHost]") -> tuple[int, int]:
    """Run the host until it ends or a signal stops it. Return the exit code and the number of handled messages."""
    import trio

    host = make_host()
    # A shell or nohup can have made the process ignore these.
    wanted = [one for one in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    with trio.open_signal_receiver(signal.SIGTERM, *wanted) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signals, host, signals)
            code = await host.run()
            nursery.cancel_scope.cancel()
    return code, host.handled


async def _stop_on_signals(host: "WorkerHost", signals: "AsyncIterator[int]") -> None:
    """The first signal drains, the second one stops immediately."""
    is_first = True
    async for number in signals:
        if not is_first:
            host.table.kill_all()
            os._exit(128 + number)
        is_first = False
        output.note(f"{signal.Signals(number).name}: draining; send it again to stop immediately")
        host.stop()


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _topics(topic: str, flags: dict[str, Any]) -> "ReplyTopics":
    from ductile.core.message import TIMEOUT_SUFFIX, ReplyTopics, checked_topic, default_reply_topics

    defaults = default_reply_topics(topic)
    success, failure = flags["success_topic"], flags["failure_topic"]
    if defaults is None and (success is None or failure is None):
        raise UsageInvalid(
            f"topic {topic} has no default reply topics", hint="Add --success-topic TOPIC and --failure-topic TOPIC."
        )
    return ReplyTopics(
        success=checked_topic(success if defaults is None or success else defaults.success),
        failure=checked_topic(failure if defaults is None or failure else defaults.failure),
        timeout=checked_topic(flags["timeout_topic"] or f"{topic}{TIMEOUT_SUFFIX}"),
    )


def _timeout_seconds(flags: dict[str, Any]) -> float:
    seconds = _seconds("--timeout", flags["timeout"], "--timeout-seconds", flags["timeout_seconds"])
    if seconds is None:
        return DEFAULT_TIMEOUT_SECONDS
    return seconds or float("inf")


def _lease_seconds(flags: dict[str, Any], timeout_seconds: float) -> float:
    from ductile.core.message import MAX_LEASE, checked_lease

    seconds = _seconds("--lease", flags["lease"], "--lease-seconds", flags["lease_seconds"])
    if seconds is not None:
        return checked_lease(seconds).total_seconds()
    if timeout_seconds == float("inf"):
        return LEASE_WITHOUT_TIMEOUT_SECONDS
    return min(timeout_seconds + LEASE_MARGIN_SECONDS, MAX_LEASE.total_seconds())


def _seconds(flag: str, text: str | None, number_flag: str, number: float | None) -> float | None:
    """Return the value of a duration flag, or of its variant in seconds."""
    if text is not None and number is not None:
        raise UsageInvalid(f"{flag} and {number_flag} are mutually exclusive")
    return number if text is None else _duration(flag, text)


def _duration(flag: str, text: str) -> float:
    from ductile.core.units import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageInvalid(f"{flag}: {error}") from error


def _work_settings(
    command: tuple[str, ...], topics: "ReplyTopics", timeout_seconds: float, flags: dict[str, Any]
) -> "WorkSettings":
    from ductile.exchange.worker.values import WorkSettings

    return WorkSettings(
        argv=command,
        topics=topics,
        timeout_seconds=timeout_seconds,
        replace_invalid=flags["replace_invalid"],
        environment=dict(os.environ),
    )


def _host_settings(flags: dict[str, Any]) -> "HostSettings":
    from ductile.exchange.worker.values import HostSettings

    once, wait, maximum, idle = flags["once"], flags["wait"], flags["max_messages"], flags["idle_exit"]
    if once and (maximum is not None or idle is not None):
        raise UsageInvalid("--once excludes --max and --idle-exit")
    if wait is not None and not once:
        raise UsageInvalid("--wait requires --once")
    idle_seconds = _duration("--wait", wait) if wait else _duration("--idle-exit", idle) if idle else None
    return HostSettings(
        concurrency=flags["concurrency"],
        max_messages=1 if once else maximum,
        idle_seconds=idle_seconds,
        idle_exit_code=NOTHING_CAME_EXIT if once else 0,
        drain_seconds=_duration("--drain", flags["drain"]),
    )
