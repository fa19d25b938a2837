"""The dispatcher and its jobs, with a real ledger and real plugin processes."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ductile.core.errors import LedgerFull, LedgerLost
from ductile.core.formats import strict_json
from ductile.core.hub import job_topic, tree_topic
from ductile.engine.maintenance.unrunnable_jobs import end_unrunnable_jobs
from ductile.engine.run_job import LEDGER_TIMEOUT, run_job
from ductile.engine.running_jobs import Attempt, RunningJobs
from ductile.ledger.admin.job_actions import retry
from ductile.ledger.admin.pauses import ALL_PLUGINS
from ductile.ledger.completion.start_run import start_run
from ductile.pipeline.compile.plan import RELAY
from ductile.pipeline.run.route import trigger_run
from tests.e2e.service import Home
from tests.engine.builders import a_job, snapshot_of
from tests.engine.dispatcher_service import (
    ANSWER,
    GATED,
    Disk,
    DispatcherService,
    disk,
    is_alive,
    open_dispatcher,
    wait_until,
)

__all__ = ["disk"]  # a fixture

pytestmark = pytest.mark.process

FULL = LedgerFull("the disk is full")
INSTANCE = """\
plugins: {echo: {}}
include: [tokens.yaml]
instances: [{name: lab, base_url: "http://127.0.0.1:9/", ingress_path: /in, secret_ref: line, key_id: k1}]
"""
IS_OPEN = "status IN ('queued', 'running')"
SPLIT = """\
plugins: {echo: {}, other: {}}
pipelines:
  - name: both
    on: x
    steps:
      - {split: [{uses: echo}, {uses: other}], join: true}
"""
UNTIL_TERMINATED = """trap 'kill $!; exit 3' TERM
echo here >&2
cd "{gates}" && echo $$ >> "started.$DUCTILE_JOB_ID"
sleep 600 & wait"""


# ── run queued jobs ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_queued_job_runs_and_its_end_is_announced_and_counted(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path, ANSWER) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        with dispatcher.ctx.hub.watch(tree_topic(job_id)) as hints, trio.fail_after(30):
            await hints.receive()
        assert dispatcher.status(job_id) == "succeeded"
        assert list(dispatcher.ctx.metrics.jobs.values()) == [1]
        assert len(dispatcher.ctx.running) == 0


async def test_no_more_jobs_run_than_there_are_workers(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path, workers=2) as dispatcher:
        jobs = await dispatcher.queue_many(3)
        await dispatcher.start()
        await dispatcher.until_started(*jobs[:2])
        assert [dispatcher.status(job_id) for job_id in jobs] == ["running", "running", "queued"]
        await dispatcher.finish(jobs[0])
        await dispatcher.finish(*jobs[1:])
        await dispatcher.until_ended(*jobs)


async def test_a_job_that_is_retried_immediately_runs_again(tmp_path: Path) -> None:
    """Even if its first attempt is not durable and the task of that has not ended."""
    fails_first = f"""cd "{{gates}}" && if mkdir "seen.$DUCTILE_JOB_ID" 2>/dev/null; then exit 1; fi\n{ANSWER}"""
    config = "plugins: {echo: {retry: {backoff_base: 1ms}}}\n"
    async with open_dispatcher(tmp_path, fails_first, config=config) as dispatcher:
        await dispatcher.start()
        jobs = await dispatcher.queue_many(5, max_attempts=2)
        await dispatcher.until_ended(*jobs)
        assert dispatcher.rows("SELECT DISTINCT status, attempt FROM job_queue") == [("succeeded", 2)]


async def test_the_end_of_a_job_that_the_claim_skips_is_announced(tmp_path: Path) -> None:
    """A job whose dedupe key succeeded while it was queued does not start; its callers are woken."""
    async with open_dispatcher(tmp_path, f'[ -e "{{gates}}/ready" ] || exit 78\n{GATED}') as dispatcher:
        await dispatcher.start()
        first = await dispatcher.queue(dedupe_key="key")
        await dispatcher.until_ended(first)
        (dispatcher.gates / "ready").touch()
        second = await dispatcher.queue(dedupe_key="key")
        await dispatcher.until_started(second)
        await dispatcher.ledger.write(retry, first, now=dispatcher.ctx.clock.now())
        with dispatcher.ctx.hub.watch(job_topic(first)) as hints, trio.fail_after(30):
            await dispatcher.finish(second)
            await hints.receive()
        assert (dispatcher.status(first), dispatcher.status(second)) == ("skipped", "succeeded")


async def test_a_run_that_ends_because_a_waiting_job_is_cancelled_is_announced(tmp_path: Path) -> None:
    """The next claim resolves its join and wakes callers that wait for the run."""
    async with open_dispatcher(tmp_path, ANSWER, config=SPLIT, other=ANSWER) as dispatcher:
        dispatcher.blocked_plugins.add("other")
        await dispatcher.start()
        snapshot, now = dispatcher.snapshot, dispatcher.ctx.clock.now()
        run = trigger_run(snapshot.plans.require("both"), {}, snapshot.routing, submitted_by="test", now=now)
        root, *_ = await dispatcher.ledger.write(start_run, run.follow_ups, now=now)
        dispatcher.ctx.hub.announce_work()
        open_jobs = f"SELECT id, plugin FROM job_queue WHERE {IS_OPEN} AND plugin IN ('echo', 'other')"
        await wait_until(lambda: [plugin for _, plugin in dispatcher.rows(open_jobs)] == ["other"])
        ((waiting, _),) = dispatcher.rows(open_jobs)
        with dispatcher.ctx.hub.watch(tree_topic(root.root_job_id)) as hints, trio.fail_after(30):
            assert await dispatcher.cancel(waiting, "not needed")
            await hints.receive()
        assert dispatcher.rows(f"SELECT COUNT(*) FROM job_queue WHERE {IS_OPEN}") == [(0,)]


@pytest.mark.parametrize("obstacle", ["busy", "paused"])
async def test_a_join_is_resolved_while_no_job_can_start(tmp_path: Path, obstacle: str) -> None:
    """A join needs no worker, so neither a busy worker nor a paused queue delays it."""
    config = SPLIT.replace("other: {}", "other: {}, third: {}")
    async with open_dispatcher(tmp_path, ANSWER, workers=1, config=config, other=ANSWER, third=GATED) as dispatcher:
        dispatcher.blocked_plugins.add("other")
        await dispatcher.start()
        snapshot, now = dispatcher.snapshot, dispatcher.ctx.clock.now()
        run = trigger_run(snapshot.plans.require("both"), {}, snapshot.routing, submitted_by="test", now=now)
        root, *_ = await dispatcher.ledger.write(start_run, run.follow_ups, now=now)
        dispatcher.ctx.hub.announce_work()
        open_jobs = f"SELECT id, plugin FROM job_queue WHERE {IS_OPEN} AND plugin IN ('echo', 'other')"
        await wait_until(lambda: [plugin for _, plugin in dispatcher.rows(open_jobs)] == ["other"])
        ((waiting, _),) = dispatcher.rows(open_jobs)
        running = await dispatcher.queue("third")
        if obstacle == "busy":
            await dispatcher.until_started(running)
        else:
            dispatcher.blocked_plugins.add(ALL_PLUGINS)
        with dispatcher.ctx.hub.watch(tree_topic(root.root_job_id)) as hints, trio.fail_after(30):
            assert await dispatcher.cancel(waiting, "not needed")
            await hints.receive()
        dispatcher.blocked_plugins.discard(ALL_PLUGINS)
        dispatcher.ctx.hub.announce_work()
        await dispatcher.finish(running)


async def test_a_requeued_attempt_that_was_claimed_again_keeps_its_slot(tmp_path: Path) -> None:
    """A relay is requeued with the same attempt number and can be claimed before its first task has ended."""
    running, snapshot, job = RunningJobs(), snapshot_of(Home.make(tmp_path / "ductile")), a_job(plugin=RELAY)
    first, second = Attempt(job, snapshot), Attempt(job, snapshot)
    running.add([first])
    running.add([second])
    running.remove(first)
    assert list(running) == [second]
    running.remove(second)
    running.remove(second)
    assert list(running) == []


async def test_a_relay_needs_no_worker(tmp_path: Path) -> None:
    """A slow receiver must not delay plugins, and busy workers must not delay an event."""
    async with open_dispatcher(tmp_path, workers=1, config=INSTANCE) as dispatcher:
        await dispatcher.start()
        gated = await dispatcher.queue()
        await dispatcher.until_started(gated)
        payload = strict_json.dumps({"to": "lab", "event": {"type": "a.b", "payload": {}}})
        relay = await dispatcher.queue(RELAY, command="send", payload=payload, max_attempts=1)
        await dispatcher.until_ended(relay)
        assert (dispatcher.status(relay), dispatcher.status(gated)) == ("dead", "running")
        assert "instance lab" in dispatcher.error(relay)


async def test_a_job_of_a_changed_plugin_that_is_cancelled_ends_with_the_reason(tmp_path: Path) -> None:
    """Also if the cancellation is stored and has not reached its attempt."""
    async with open_dispatcher(tmp_path, ANSWER) as dispatcher:
        dispatcher.home.replace("service:\n", "service:\n  strict_mode: true\n")
        dispatcher.home.seal()
        dispatcher.snapshot = snapshot_of(dispatcher.home)
        (dispatcher.home.path / "plugins" / "echo" / "planted.sh").touch()
        job = await dispatcher.queue()
        await dispatcher.execute("UPDATE job_queue SET cancel_requested_at = created_at, cancel_reason = 'not needed'")
        await dispatcher.start()
        await dispatcher.until_ended(job)
        assert dispatcher.error(job) == "cancelled: not needed"


# ── rows that cannot be read ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("created_at", "yesterday"),
        ("asked_at", "yesterday"),
        ("failed_at", "yesterday"),
        ("slot_at", "x"),
        ("dedupe_ttl_seconds", 1e300),
        ("payload", b'{"a": "\xff"}'),
    ],
)
async def test_a_row_that_cannot_be_read_ends_its_own_job_and_no_other(
    column: str, value: object, tmp_path: Path
) -> None:
    """It is quarantined with the reason, and the next job runs."""
    async with open_dispatcher(tmp_path, ANSWER) as dispatcher:
        bad, good = await dispatcher.queue_many(2)
        as_text = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        await dispatcher.execute(f"UPDATE job_queue SET {column} = {as_text} WHERE id = ?", value, bad)
        await dispatcher.start()
        await dispatcher.until_ended(bad, good)
        assert (dispatcher.status(bad), dispatcher.status(good)) == ("dead", "succeeded")
        assert dispatcher.error(bad).startswith("cannot be started: ")
        assert dispatcher.rows("SELECT job_id FROM journal WHERE kind = 'job.quarantined'") == [(bad,)]


async def test_an_internal_error_of_the_claim_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the service, and the job stays queued."""

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a bug")

    async with open_dispatcher(tmp_path) as dispatcher:
        job_id = await dispatcher.queue()
        monkeypatch.setattr("ductile.ledger.queue.claim.journal.append_all", broken)
        with pytest.raises(ExceptionGroup):
            async with trio.open_nursery() as nursery:
                await dispatcher.start(nursery)
        assert dispatcher.status(job_id) == "queued"


async def test_a_retry_time_that_cannot_be_read_counts_as_due(tmp_path: Path) -> None:
    """Otherwise the job would wait forever."""
    async with open_dispatcher(tmp_path, ANSWER) as dispatcher:
        job_id = await dispatcher.queue()
        await dispatcher.execute("UPDATE job_queue SET lane = NULL, next_retry_at = 'soon', failed_at = created_at")
        await dispatcher.start()
        await dispatcher.until_ended(job_id)
        assert dispatcher.status(job_id) == "succeeded"


# ── paused and stopped jobs ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_plugin_that_is_paused_while_the_claim_waits_does_not_start(tmp_path: Path) -> None:
    """The claim reads the paused plugins again inside the transaction."""
    async with open_dispatcher(tmp_path) as dispatcher:
        job_id = await dispatcher.queue()
        with dispatcher.busy_ledger():
            await trio.testing.wait_all_tasks_blocked()
            await dispatcher.start()
            await trio.testing.wait_all_tasks_blocked()
            dispatcher.blocked_plugins.add("echo")
        await dispatcher.ledger.write(lambda _: None)  # behind the claim
        assert dispatcher.status(job_id) == "queued"


async def test_a_plugin_that_is_paused_while_the_disk_is_full_starts_when_it_is_resumed(tmp_path: Path) -> None:
    """Every retry of the claim computes the capacity again."""
    async with open_dispatcher(tmp_path, ANSWER) as dispatcher:
        job_id = await dispatcher.queue()
        dispatcher.faults.error = FULL
        await dispatcher.start()
        await wait_until(lambda: dispatcher.faults.refused > 0)
        dispatcher.blocked_plugins.add(ALL_PLUGINS)
        dispatcher.faults.error = None
        dispatcher.ctx.hub.announce_work()
        await trio.testing.wait_all_tasks_blocked()
        assert dispatcher.status(job_id) == "queued"
        dispatcher.blocked_plugins.clear()
        dispatcher.ctx.hub.announce_work()
        await dispatcher.until_ended(job_id)
        assert dispatcher.status(job_id) == "succeeded"


async def test_a_job_that_is_stopped_between_its_claim_and_its_start_never_starts(tmp_path: Path, disk: Disk) -> None:
    async with open_dispatcher(tmp_path, synchronous="full") as dispatcher:
        await dispatcher.start()
        with disk.blocked():
            job_id = await dispatcher.queue(is_durable=False)
            await wait_until(lambda: dispatcher.status(job_id) == "running")
            dispatcher.ctx.running.stop_job(job_id, "not needed")
        await dispatcher.until_ended(job_id)
        assert (dispatcher.status(job_id), dispatcher.error(job_id)) == ("dead", "cancelled: not needed")
        assert dispatcher.pids(job_id) == []


async def test_a_running_job_can_be_stopped(tmp_path: Path) -> None:
    """Its process gets SIGTERM, and the job has the reason."""
    async with open_dispatcher(tmp_path, UNTIL_TERMINATED) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await dispatcher.until_started(job_id)
        dispatcher.ctx.running.stop_job(job_id, "not needed")
        await dispatcher.until_ended(job_id)
        assert (dispatcher.status(job_id), dispatcher.error(job_id)) == ("dead", "cancelled: not needed")
        assert [code for (code,) in dispatcher.rows("SELECT exit_code FROM job_log")] == [3]
        assert not any(map(is_alive, dispatcher.pids(job_id)))


async def test_a_request_to_stop_a_job_that_has_ended_does_not_stop_its_next_run(tmp_path: Path) -> None:
    """A cancellation can reach an attempt that has ended meanwhile."""
    async with open_dispatcher(tmp_path, "exit 78") as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await dispatcher.until_ended(job_id)
        await trio.testing.wait_all_tasks_blocked()
        dispatcher.ctx.running.stop_job(job_id, "not needed")
        await dispatcher.ledger.write(retry, job_id, now=dispatcher.ctx.clock.now())
        dispatcher.ctx.hub.announce_work()
        await wait_until(lambda: dispatcher.rows("SELECT attempt, status FROM job_queue")[0] == (2, "failed"))
        assert "not needed" not in dispatcher.error(job_id)


async def test_stderr_of_a_running_job_can_be_read(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path, f"echo here >&2\n{GATED}") as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await wait_until(lambda: dispatcher.ctx.running.live_stderr(job_id) == "here\n")
        await dispatcher.finish(job_id)
        await dispatcher.until_ended(job_id)
        assert dispatcher.ctx.running.live_stderr(job_id) is None


# ── drain and shutdown ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_drain_waits_for_running_jobs_and_starts_no_more(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path, workers=1) as dispatcher:
        async with trio.open_nursery() as nursery:
            await dispatcher.start(nursery)
            first, second = await dispatcher.queue_many(2)
            await dispatcher.until_started(first)
            dispatcher.stopping.set()
            dispatcher.ctx.hub.announce_work()
            await dispatcher.finish(first)
        assert (dispatcher.status(first), dispatcher.status(second)) == ("succeeded", "queued")


async def test_a_drain_terminates_processes_after_its_timeout_and_requeues_their_jobs(tmp_path: Path) -> None:
    """The attempt does not count."""
    async with open_dispatcher(tmp_path, UNTIL_TERMINATED, drain="100ms") as dispatcher:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await dispatcher.start(nursery)
                job_id = await dispatcher.queue()
                await dispatcher.until_started(job_id)
                dispatcher.stopping.set()
                dispatcher.ctx.hub.announce_work()
        assert dispatcher.rows("SELECT status, attempt - interruptions FROM job_queue") == [("queued", 1)]
        assert not any(map(is_alive, dispatcher.pids(job_id)))


async def test_a_job_that_has_not_started_at_the_end_of_the_drain_is_queued_again(tmp_path: Path, disk: Disk) -> None:
    async with (
        open_dispatcher(tmp_path, drain="100ms", synchronous="full") as dispatcher,
        trio.open_nursery() as nursery,
    ):
        await dispatcher.start(nursery)
        with disk.blocked():
            job_id = await dispatcher.queue(is_durable=False)
            await wait_until(lambda: dispatcher.status(job_id) == "running")
            dispatcher.stopping.set()
            dispatcher.ctx.hub.announce_work()
            await wait_until(lambda: all(attempt.control.stop.reason for attempt in dispatcher.ctx.running))
        await wait_until(lambda: dispatcher.status(job_id) == "queued")
        assert dispatcher.pids(job_id) == []


async def test_cancellation_terminates_the_processes_first(tmp_path: Path) -> None:
    """Their jobs stay running in the ledger until the next start recovers them."""
    async with open_dispatcher(tmp_path) as dispatcher:
        async with trio.open_nursery() as nursery:
            await dispatcher.start(nursery)
            jobs = await dispatcher.queue_many(2)
            await dispatcher.until_started(*jobs)
            nursery.cancel_scope.cancel()
        assert [dispatcher.status(job_id) for job_id in jobs] == ["running", "running"]
        assert not any(is_alive(pid) for job_id in jobs for pid in dispatcher.pids(job_id))


async def test_all_processes_can_be_killed_without_waiting(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue(max_attempts=1)
        await dispatcher.until_started(job_id)
        dispatcher.ctx.processes.kill_all()
        await dispatcher.until_ended(job_id)
        assert dispatcher.status(job_id) == "dead"


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_survives_a_full_disk(tmp_path: Path) -> None:
    """It is recorded when there is space again, and the plugin does not run twice."""
    async with open_dispatcher(tmp_path) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await dispatcher.until_started(job_id)
        dispatcher.faults.error = FULL
        await dispatcher.finish(job_id)
        await wait_until(lambda: dispatcher.faults.refused > 0)
        assert dispatcher.status(job_id) == "running"
        dispatcher.faults.error = None
        await dispatcher.until_ended(job_id)
        assert (dispatcher.status(job_id), len(dispatcher.pids(job_id))) == ("succeeded", 1)
        assert "the disk is full; trying again" in dispatcher.log()


async def test_a_result_survives_the_cancellation_of_the_service(tmp_path: Path) -> None:
    """A completion that waits for the ledger is recorded."""
    async with open_dispatcher(tmp_path) as dispatcher, trio.open_nursery() as service:
        await dispatcher.start(service)
        job_id = await dispatcher.queue()
        await dispatcher.until_started(job_id)
        with dispatcher.busy_ledger():
            await trio.testing.wait_all_tasks_blocked()
            await dispatcher.finish(job_id)
            await wait_until(lambda: all(attempt.has_run for attempt in dispatcher.ctx.running))
            service.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        await dispatcher.until_ended(job_id)
        assert dispatcher.status(job_id) == "succeeded"


async def test_a_full_disk_does_not_block_a_cancelled_service_forever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_dispatcher(tmp_path) as dispatcher:
        dispatcher.faults.error = FULL
        began = trio.current_time()
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(LedgerFull):
                await run_job(dispatcher.ctx, Attempt(a_job(plugin="gone"), dispatcher.snapshot))
        assert LEDGER_TIMEOUT <= trio.current_time() - began < 2 * LEDGER_TIMEOUT


async def test_a_late_result_is_dropped(tmp_path: Path) -> None:
    """The row has another attempt number, so the result changes nothing."""
    async with open_dispatcher(tmp_path) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await dispatcher.until_started(job_id)
        await dispatcher.execute("UPDATE job_queue SET attempt = 2")
        await dispatcher.finish(job_id)
        await wait_until(lambda: "late result dropped: the job is running" in dispatcher.log())
        assert dispatcher.rows("SELECT status, attempt FROM job_queue") == [("running", 2)]
        assert dispatcher.rows("SELECT COUNT(*) FROM job_log") == [(0,)]


@pytest.mark.parametrize(
    ("step", "status", "attempts"), [("preflight", ("queued", 2), 0), ("complete", ("failed", 1), 1)]
)
async def test_an_internal_error_affects_its_own_job_only(
    step: str,
    status: tuple[str, int],
    attempts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is retried if the plugin has not run; otherwise it fails, because its effects exist."""
    from ductile.engine import run_job as module

    real: Callable[..., Any] = getattr(module, step)

    def broken(*args: Any, **kwargs: Any) -> Any:
        if any(getattr(arg, "plugin", None) == "other" for arg in args):
            raise RuntimeError("a bug")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, step, broken)
    config = "plugins: {echo: {}, other: {}}\n"
    async with open_dispatcher(
        tmp_path, ANSWER, config=config, other=f'echo >> "{{gates}}/ran"\n{ANSWER}'
    ) as dispatcher:
        await dispatcher.start()
        bad, good = await dispatcher.queue("other"), await dispatcher.queue()
        await dispatcher.until_ended(good)
        await wait_until(lambda: dispatcher.status(bad) != "running" and "internal error" in str(dispatcher.error(bad)))
        assert dispatcher.rows("SELECT status, attempt FROM job_queue WHERE id = ?", bad) == [status]
        assert (dispatcher.error(bad), dispatcher.status(good)) == (
            "internal error: RuntimeError('a bug')",
            "succeeded",
        )
        ran = dispatcher.gates / "ran"
        assert (len(ran.read_text().splitlines()) if ran.exists() else 0) == attempts


async def test_a_job_of_an_older_configuration_ends_follow_up_jobs_that_cannot_run(tmp_path: Path) -> None:
    """A reload can remove the plugin of its follow-up jobs while it runs."""
    async with open_dispatcher(tmp_path, config="plugins: {echo: {}, other: {}}\n", other=ANSWER) as dispatcher:
        await dispatcher.start()
        running = await dispatcher.queue()
        await dispatcher.until_started(running)
        text = (dispatcher.home.path / "config.yaml").read_text()
        dispatcher.home.write("config.yaml", text.replace("other: {}", "other: {enabled: false}"))
        dispatcher.snapshot = snapshot_of(dispatcher.home)
        follow_up = await dispatcher.queue("other")
        await dispatcher.finish(running)
        await dispatcher.until_ended(running, follow_up)
        assert (dispatcher.status(running), dispatcher.status(follow_up)) == ("succeeded", "dead")
        assert "disabled" in dispatcher.error(follow_up)


async def test_unrunnable_jobs_are_decided_by_the_current_configuration(tmp_path: Path) -> None:
    """A reload can enable a plugin while maintenance waits for the ledger. Its new jobs must not end."""
    disabled = "plugins: {echo: {enabled: false}, slow: {}}\n"
    async with open_dispatcher(tmp_path, workers=1, config=disabled, slow=GATED) as dispatcher:
        await dispatcher.start()
        running = await dispatcher.queue("slow")
        await dispatcher.until_started(running)
        before = dispatcher.snapshot
        text = (dispatcher.home.path / "config.yaml").read_text()
        dispatcher.home.write("config.yaml", text.replace("echo: {enabled: false}", "echo: {}"))
        dispatcher.snapshot = snapshot_of(dispatcher.home)
        waiting = await dispatcher.queue("echo")
        used = iter([before, before])  # what is read before the reload
        await end_unrunnable_jobs(
            dispatcher.ledger,
            lambda: next(used, dispatcher.snapshot),
            dispatcher.ctx.log,
            now=dispatcher.ctx.clock.now(),
        )
        assert dispatcher.status(waiting) == "queued"
        await dispatcher.finish(running, waiting)
        await dispatcher.until_ended(waiting)


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_jobs_start_and_end_while_a_sync_is_blocked(tmp_path: Path, disk: Disk) -> None:
    """A slow disk delays callers, not jobs: durable queued jobs need no further sync."""
    async with open_dispatcher(tmp_path, ANSWER, workers=8, synchronous="full") as dispatcher:
        jobs = await dispatcher.queue_many(30)
        with disk.blocked():
            await dispatcher.start()
            await dispatcher.until_ended(*jobs)
        assert {dispatcher.status(job_id) for job_id in jobs} == {"succeeded"}


async def test_a_completion_names_the_commit_that_makes_it_durable(tmp_path: Path, disk: Disk) -> None:
    """A caller waits for that commit, so it never sees a result that a power cut can undo."""
    async with open_dispatcher(tmp_path, synchronous="full") as dispatcher:
        job_id = await dispatcher.queue()
        await dispatcher.start()
        await dispatcher.until_started(job_id)
        with dispatcher.ctx.hub.watch(job_topic(job_id)) as completions, trio.fail_after(30):
            with disk.blocked():
                await dispatcher.finish(job_id)
                completion = await completions.receive()
                assert completion is not None
                assert dispatcher.ctx.ledger.durable < completion.commit <= dispatcher.ctx.ledger.commits
            await dispatcher.ctx.ledger.until_durable(completion.commit)


async def test_a_new_job_does_not_start_before_it_is_durable(tmp_path: Path, disk: Disk) -> None:
    """A durable job that is claimed after it does not wait."""
    async with open_dispatcher(tmp_path, synchronous="full") as dispatcher:
        dispatcher.blocked_plugins.add("echo")
        durable = await dispatcher.queue()
        await dispatcher.start()
        dispatcher.blocked_plugins.clear()
        with disk.blocked():
            new = await dispatcher.queue(is_durable=False)
            await dispatcher.until_started(durable)
            await wait_until(lambda: dispatcher.status(new) == "running")
            await trio.testing.wait_all_tasks_blocked()
            assert dispatcher.pids(new) == []
        await dispatcher.finish(durable, new)
        await dispatcher.until_ended(durable, new)


async def test_a_requeued_job_does_not_start_before_the_requeue_is_durable(tmp_path: Path, disk: Disk) -> None:
    """Its row is old, so its queue position does not prove that."""
    async with open_dispatcher(tmp_path, "exit 78", synchronous="full") as dispatcher:
        job_id = await dispatcher.queue()
        await dispatcher.start()
        await dispatcher.until_ended(job_id)
        with disk.blocked():
            await dispatcher.ledger.transact(lambda db: retry(db, job_id, now=dispatcher.ctx.clock.now()), wait=False)
            dispatcher.ctx.hub.announce_work()
            await wait_until(lambda: dispatcher.status(job_id) == "running")
            await trio.testing.wait_all_tasks_blocked()
            assert dispatcher.status(job_id) == "running", "it must not have started"
        await dispatcher.until_ended(job_id)


async def test_a_job_that_never_becomes_durable_does_not_run(tmp_path: Path, disk: Disk) -> None:
    """The service ends, and the next start recovers what is on the disk."""
    async with open_dispatcher(tmp_path, synchronous="full") as dispatcher:
        with pytest.RaisesGroup(LedgerLost, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await dispatcher.start(nursery)
                with disk.blocked():
                    job_id = await dispatcher.queue(is_durable=False)
                    await wait_until(lambda: dispatcher.status(job_id) == "running")
                    disk.fails = True
        assert dispatcher.pids(job_id) == []


async def test_the_service_ends_when_the_ledger_breaks(tmp_path: Path, disk: Disk) -> None:
    """Its processes end too, because their results cannot be recorded."""
    async with open_dispatcher(tmp_path, synchronous="full") as dispatcher:
        with pytest.RaisesGroup(LedgerLost, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await dispatcher.start(nursery)
                job_id = await dispatcher.queue()
                await dispatcher.until_started(job_id)
                disk.fails = True
                await dispatcher.queue(is_durable=False)
        assert not any(map(is_alive, dispatcher.pids(job_id)))


# ── process ids ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_process_id_of_a_long_attempt_is_stored_and_delays_no_other_job(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while the disk is slow, because recovery also works without it."""
    monkeypatch.setattr("ductile.engine.process.run.LONG_RUN_SECONDS", 0.0)
    async with open_dispatcher(tmp_path, workers=2, synchronous="full") as dispatcher:
        long, second, third = await dispatcher.queue_many(3)
        with disk.blocked():
            await dispatcher.start()
            await wait_until(lambda: stored_pids(dispatcher, long) == dispatcher.pids(long)[:1])
            await dispatcher.finish(second)
            await dispatcher.until_ended(second)
            await dispatcher.until_started(third)
            await wait_until(lambda: stored_pids(dispatcher, third) == dispatcher.pids(third)[:1])
        await dispatcher.finish(long, third)
        await dispatcher.until_ended(long, third)
        assert dispatcher.rows("SELECT COUNT(*) FROM journal WHERE kind = 'plugin.spawned'") == [(3,)]


def stored_pids(dispatcher: DispatcherService, job_id: str) -> list[int]:
    """Return the process id that the ledger has of a job."""
    return [pid for (pid,) in dispatcher.rows("SELECT pid FROM job_queue WHERE id = ? AND pid IS NOT NULL", job_id)]


async def test_a_process_id_is_stored_when_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt runs meanwhile, and its exit is noticed even if the id is not stored."""
    monkeypatch.setattr("ductile.engine.process.run.LONG_RUN_SECONDS", 0.2)
    async with open_dispatcher(tmp_path) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await wait_until(lambda: dispatcher.status(job_id) == "running")
        dispatcher.faults.error = FULL
        await wait_until(lambda: "process id not stored" in dispatcher.log())
        dispatcher.faults.error = None
        await wait_until(lambda: stored_pids(dispatcher, job_id) == dispatcher.pids(job_id)[:1])
        await dispatcher.finish(job_id)
        await dispatcher.until_ended(job_id)
        assert dispatcher.status(job_id) == "succeeded"


async def test_a_process_that_cannot_be_identified_does_not_fail_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor procfs cannot be read."""
    monkeypatch.setattr("ductile.engine.process.run.LONG_RUN_SECONDS", 0.2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_dispatcher(tmp_path) as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await dispatcher.until_started(job_id)
        with dispatcher.lines.open() as log:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                await wait_until(lambda: "process id not stored" in (log.seek(0), log.read())[1])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await dispatcher.finish(job_id)
        await dispatcher.until_ended(job_id)
        assert (dispatcher.status(job_id), len(dispatcher.pids(job_id))) == ("succeeded", 1)


async def test_jobs_that_cannot_be_claimed_do_not_use_memory(tmp_path: Path) -> None:
    """Every new job causes a claim, even while its plugin is paused."""
    async with open_dispatcher(tmp_path, config="plugins: {echo: {}, other: {}}\n", other=ANSWER) as dispatcher:
        dispatcher.blocked_plugins.add("echo")
        await dispatcher.start()
        for job_id in await dispatcher.queue_many(20):
            assert dispatcher.status(job_id) == "queued"
            await trio.testing.wait_all_tasks_blocked()
        assert len(dispatcher.ctx.durable_jobs.pending) <= 1
