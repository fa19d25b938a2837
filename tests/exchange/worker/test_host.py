"""The worker host with real processes: results, hostile commands, leases, stops and absences of the service."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ductile.core.errors import NotAllowed, ServiceUnreachable
from ductile.core.message import BodyTooLarge, ClaimStatus
from ductile.engine.process.procfs import adopted_children, become_subreaper
from tests.exchange.worker.worker_host import (
    RecordingService,
    handle,
    make_claim,
    make_host,
    make_work,
    running_host,
    shell,
)

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    become_subreaper()
    yield
    become_subreaper(False)
    assert adopted_children(known=()) == []


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A FIFO: a command that writes to it tells the test that it runs."""
    os.mkfifo(tmp_path / "ready")
    return tmp_path / "ready"


async def read_fifo(path: Path) -> str:
    with trio.fail_after(60):
        return await trio.to_thread.run_sync(path.read_text, abandon_on_cancel=True)


# --- results ----------------------------------------------------------------------------------------------------------


async def test_the_body_is_stdin_and_stdout_is_the_answer() -> None:
    service = await handle(shell("cat; echo $DUCTILE_TOPIC"), make_claim("résumé\n"))
    assert [(end.status, end.topic, end.body) for end in service.ends] == [
        (ClaimStatus.COMPLETED, "review.done", "résumé\nreview.request\n")
    ]


@pytest.mark.parametrize(
    ("script", "status", "body"),
    [
        pytest.param("head -c 300000 /dev/zero | tr '\\0' x; cat >&2", "completed", "x" * 300_000, id="writes first"),
        pytest.param("exec 0<&-; echo done", "completed", "done\n", id="closes stdin"),
        pytest.param("echo done", "completed", "done\n", id="never reads"),
        pytest.param("while :; do :; done", "timed_out", "command timed out after 0.5 seconds", id="never ends"),
        pytest.param("trap '' TERM; echo no >&2; exec 1>&-; while :; do :; done", "timed_out", None, id="ignores TERM"),
        pytest.param("exec cat /dev/zero", "failed", "output too large: stdout exceeds 1.0MB", id="floods"),
        pytest.param("(setsid sleep 1000 &) ; echo parent", "completed", "parent\n", id="child holds stdout"),
        pytest.param("kill -9 $$", "failed", "command was killed by SIGKILL", id="kills itself"),
        pytest.param(
            "printf 'caf\\351'", "failed", "output is not UTF-8 text: invalid byte at position 3", id="latin-1"
        ),
    ],
)
async def test_every_command_has_an_answer_in_time(script: str, status: str, body: str | None) -> None:
    limit = 0.5 if status == "timed_out" else 60.0
    service = await handle(shell(script, timeout_seconds=limit), make_claim("b" * 500_000))
    (end,) = service.ends
    assert end.status == status
    assert body is None or end.body == body


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/etc/passwd", "/"])
async def test_a_command_that_cannot_be_started_fails_its_claim(program: str) -> None:
    service = await handle(make_work(program))
    (end,) = service.ends
    assert (end.status, end.topic) == (ClaimStatus.FAILED, "review.failed")
    assert end.body.startswith(f"command cannot be started: {program}: ")


async def test_five_failed_starts_in_a_row_end_the_host_with_78() -> None:
    service = RecordingService([make_claim(message_id=str(number)) for number in range(9)])
    running = make_host(service, make_work("no-such-program"))
    assert await running.host.run() == 78
    assert (len(service.ends), len(service.queued)) == (5, 4)


async def test_exit_code_75_releases_the_message() -> None:
    service = await handle(shell("exit 75"), make_claim(delivery=3))
    assert service.ends == []
    assert [(given.delay.total_seconds(), given.uncounted) for given in service.releases] == [(4.0, False)]


# --- claims -----------------------------------------------------------------------------------------------------------


async def test_the_host_claims_only_what_it_can_start() -> None:
    service = RecordingService([make_claim(message_id=str(number)) for number in range(8)])
    assert await make_host(service, shell("cat"), concurrency=3, max_messages=8).host.run() == 0
    assert len(service.ends) == 8
    assert 1 <= service.most_held <= 3


async def test_an_idle_host_ends_with_the_given_code() -> None:
    assert await make_host(RecordingService(), shell("cat"), idle_seconds=0.05).host.run() == 0
    once = make_host(RecordingService(), shell("cat"), idle_seconds=0.05, max_messages=1, idle_exit_code=75)
    assert await once.host.run() == 75


async def test_a_host_without_patience_takes_what_is_ready() -> None:
    service = RecordingService([make_claim()])
    host = make_host(service, shell("cat"), idle_seconds=0.0, max_messages=1, idle_exit_code=75)
    assert await host.host.run() == 0
    assert len(service.ends) == 1


async def test_a_third_of_the_lease_renews_it(ready: Path) -> None:
    """The command waits until the lease was renewed, which is long before it is over."""
    service = RecordingService([make_claim(lease_seconds=1.5)])
    async with running_host(service, shell(f"cat {ready}")):
        with trio.fail_after(30):
            await service.extended.wait()
        await trio.to_thread.run_sync(ready.write_text, "go")
        await service.until(lambda: bool(service.ends))
    assert service.ends[0].body == "go"


async def test_a_lost_claim_ends_the_process_without_a_follow_up() -> None:
    service = RecordingService([make_claim(lease_seconds=0.3)], lost=True)
    running = make_host(service, shell("exec sleep 1000"), max_messages=1)
    with trio.fail_after(30):
        await running.host.run()
    assert (service.ends, service.releases) == ([], [])
    assert running.reports == ["message message-1: the claim is lost; the result is discarded"]


# --- the service is away or refuses -----------------------------------------------------------------------------------


async def test_a_result_is_kept_while_the_service_is_away() -> None:
    service = RecordingService([make_claim()], errors=[ServiceUnreachable(), ServiceUnreachable()])
    assert await make_host(service, shell("cat"), max_messages=1).host.run() == 0
    assert [end.body for end in service.ends] == ["hello"]


async def test_a_result_is_given_up_when_the_lease_is_over() -> None:
    service = RecordingService([make_claim(lease_seconds=0.2)], is_away=True)
    running = make_host(service, shell("cat"), max_messages=1)
    with trio.fail_after(30):
        await running.host.run()
    assert service.ends == []
    assert running.reports == ["message message-1: the claim was not ended: The service does not respond."]


async def test_a_refused_result_becomes_a_failure_else_a_release() -> None:
    failed = RecordingService([make_claim()], errors=[BodyTooLarge("body: too large")])
    await make_host(failed, shell("cat"), max_messages=1).host.run()
    assert [(end.topic, end.body) for end in failed.ends] == [
        ("review.failed", "the result was refused: body: too large")
    ]
    released = RecordingService([make_claim()], errors=[NotAllowed(), NotAllowed()])
    await make_host(released, shell("cat"), max_messages=1).host.run()
    assert [given.reason for given in released.releases] == ["the result was refused: not_allowed"]


async def test_an_absent_service_ends_the_host_at_its_start_only() -> None:
    absent = RecordingService(claim_errors=[ServiceUnreachable("no service")])
    with pytest.raises(ServiceUnreachable):
        await make_host(absent, shell("cat")).host.run()
    service = RecordingService([make_claim()])
    async with running_host(service, shell("cat")) as running:
        await service.until(lambda: len(service.ends) == 1)
        service.claim_errors.append(ServiceUnreachable("no service"))
        service.publish(make_claim())
        service.publish(make_claim())
        await service.until(lambda: len(service.ends) == 3)
    assert running.reports == ["no service; waiting for the service"]


async def test_a_final_refusal_ends_the_host_after_its_running_commands(ready: Path) -> None:
    service = RecordingService([make_claim()])
    running = make_host(service, shell(f"cat {ready}"), concurrency=2)
    async with trio.open_nursery() as nursery:

        async def run_until_refused() -> None:
            with pytest.raises(NotAllowed):
                await running.host.run()

        nursery.start_soon(run_until_refused)
        await service.until(lambda: not service.queued)
        service.claim_errors.append(NotAllowed())
        service.publish()
        await trio.to_thread.run_sync(ready.write_text, "go")
    assert [end.body for end in service.ends] == ["go"]


# --- stops ------------------------------------------------------------------------------------------------------------


async def test_a_stop_lets_running_commands_finish(ready: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    service = RecordingService([make_claim(), make_claim("never claimed")])
    async with running_host(service, shell(f"echo > {ready}; cat {tmp_path / 'gate'}")) as running:
        await read_fifo(ready)
        running.host.stop()
        await trio.to_thread.run_sync((tmp_path / "gate").write_text, "done")
        assert await running.until_ended() == 0
    assert [end.body for end in service.ends] == ["done"]
    assert len(service.queued) == 1


async def test_a_stop_releases_uncounted_what_outlasts_the_drain(ready: Path) -> None:
    service = RecordingService([make_claim()])
    async with running_host(service, shell(f"echo > {ready}; exec sleep 1000"), drain_seconds=0.1) as running:
        await read_fifo(ready)
        running.host.stop()
        assert await running.until_ended() == 0
    assert service.ends == []
    assert [given.uncounted for given in service.releases] == [True]
