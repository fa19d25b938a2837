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
from ductile.ledger.admin.operate import retry
from ductile.ledger.admin.pauses import EVERYTHING
from ductile.ledger.completion.follow_ups import start_run
from ductile.pipeline.compile.plan import RELAY
from ductile.pipeline.run.route import begin
from tests.e2e.service import Home
from tests.engine.builders import a_job, snapshot_of
from tests.engine.dispatching import ANSWER, GATED, Disk, Dispatching, disk, is_alive, open_dispatching, until

__all__ = ["disk"]  # a fixture

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


# ── from the queue to the end ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_queued_job_runs_and_its_end_is_announced_and_counted(tmp_path: Path) -> None:
    async with open_dispatching(tmp_path, ANSWER) as one:
        await one.start()
        job_id = await one.queue()
        with one.ctx.hub.watch(tree_topic(job_id)) as hints, trio.fail_after(30):
            await hints.receive()
        assert one.status(job_id) == "succeeded"
        assert list(one.ctx.meters.jobs.values()) == [1]
        assert len(one.ctx.running) == 0


async def test_no_more_jobs_run_than_there_are_workers(tmp_path: Path) -> None:
    async with open_dispatching(tmp_path, workers=2) as one:
        jobs = await one.queue_many(3)
        await one.start()
        await one.until_started(*jobs[:2])
        assert [one.status(job_id) for job_id in jobs] == ["running", "running", "queued"]
        await one.finish(jobs[0])
        await one.finish(*jobs[1:])
        await one.until_ended(*jobs)


async def test_a_job_that_is_retried_at_once_runs_again(tmp_path: Path) -> None:
    """Its first attempt need not be durable for that, nor its task be over."""
    fails_first = f"""cd "{{gates}}" && if mkdir "seen.$DUCTILE_JOB_ID" 2>/dev/null; then exit 1; fi\n{ANSWER}"""
    config = "plugins: {echo: {retry: {backoff_base: 1ms}}}\n"
    async with open_dispatching(tmp_path, fails_first, config=config) as one:
        await one.start()
        jobs = await one.queue_many(5, max_attempts=2)
        await one.until_ended(*jobs)
        assert one.rows("SELECT DISTINCT status, attempt FROM job_queue") == [("succeeded", 2)]


async def test_the_end_of_a_job_that_the_claim_skips_is_announced(tmp_path: Path) -> None:
    """A job whose key succeeded while it waited never starts, and its callers need not wait longer."""
    async with open_dispatching(tmp_path, f'[ -e "{{gates}}/ready" ] || exit 78\n{GATED}') as one:
        await one.start()
        first = await one.queue(dedupe_key="key")
        await one.until_ended(first)
        (one.gates / "ready").touch()
        second = await one.queue(dedupe_key="key")
        await one.until_started(second)
        await one.ledger.write(retry, first, now=one.ctx.clock.now())
        with one.ctx.hub.watch(job_topic(first)) as hints, trio.fail_after(30):
            await one.finish(second)
            await hints.receive()
        assert (one.status(first), one.status(second)) == ("skipped", "succeeded")


async def test_a_run_that_ends_because_a_waiting_job_is_cancelled_is_announced(tmp_path: Path) -> None:
    """Its join ends with the next claim; a caller that waits for the run hears of that."""
    async with open_dispatching(tmp_path, ANSWER, config=SPLIT, other=ANSWER) as one:
        one.held.add("other")
        await one.start()
        snapshot, now = one.snapshot, one.ctx.clock.now()
        run = begin(snapshot.plans.named("both"), {}, snapshot.world, submitted_by="test", now=now)
        root, *_ = await one.ledger.write(start_run, run.following, now=now)
        one.ctx.hub.announce_work()
        open_jobs = f"SELECT id, plugin FROM job_queue WHERE {IS_OPEN} AND plugin IN ('echo', 'other')"
        await until(lambda: [plugin for _, plugin in one.rows(open_jobs)] == ["other"])
        ((waiting, _),) = one.rows(open_jobs)
        with one.ctx.hub.watch(tree_topic(root.root_job_id)) as hints, trio.fail_after(30):
            assert await one.cancel(waiting, "not needed")
            await hints.receive()
        assert one.rows(f"SELECT COUNT(*) FROM job_queue WHERE {IS_OPEN}") == [(0,)]


@pytest.mark.parametrize("obstacle", ["busy", "paused"])
async def test_a_join_is_resolved_while_no_job_can_start(tmp_path: Path, obstacle: str) -> None:
    """A join needs no worker: neither a busy worker nor a paused queue keeps its run open."""
    config = SPLIT.replace("other: {}", "other: {}, third: {}")
    async with open_dispatching(tmp_path, ANSWER, workers=1, config=config, other=ANSWER, third=GATED) as one:
        one.held.add("other")
        await one.start()
        snapshot, now = one.snapshot, one.ctx.clock.now()
        run = begin(snapshot.plans.named("both"), {}, snapshot.world, submitted_by="test", now=now)
        root, *_ = await one.ledger.write(start_run, run.following, now=now)
        one.ctx.hub.announce_work()
        open_jobs = f"SELECT id, plugin FROM job_queue WHERE {IS_OPEN} AND plugin IN ('echo', 'other')"
        await until(lambda: [plugin for _, plugin in one.rows(open_jobs)] == ["other"])
        ((waiting, _),) = one.rows(open_jobs)
        running = await one.queue("third")
        if obstacle == "busy":
            await one.until_started(running)
        else:
            one.held.add(EVERYTHING)
        with one.ctx.hub.watch(tree_topic(root.root_job_id)) as hints, trio.fail_after(30):
            assert await one.cancel(waiting, "not needed")
            await hints.receive()
        one.held.discard(EVERYTHING)
        one.ctx.hub.announce_work()
        await one.finish(running)


async def test_an_attempt_that_was_put_back_and_claimed_again_keeps_its_slot(tmp_path: Path) -> None:
    """A relay goes back to the queue with its attempt number, and can be claimed before its first task has ended."""
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
    """A receiver that hangs must not hold up plugins, and busy workers must not hold up an event."""
    async with open_dispatching(tmp_path, workers=1, config=INSTANCE) as one:
        await one.start()
        gated = await one.queue()
        await one.until_started(gated)
        payload = strict_json.dumps({"to": "lab", "event": {"type": "a.b", "payload": {}}})
        relay = await one.queue(RELAY, command="send", payload=payload, max_attempts=1)
        await one.until_ended(relay)
        assert (one.status(relay), one.status(gated)) == ("dead", "running")
        assert "instance lab" in one.error(relay)


# ── rows that cannot be read ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("column", "value"),
    [("created_at", "yesterday"), ("slot_at", "x"), ("dedupe_ttl_seconds", 1e300), ("payload", b'{"a": "\xff"}')],
)
async def test_a_row_that_cannot_be_read_ends_its_own_job_and_no_other(
    column: str, value: object, tmp_path: Path
) -> None:
    """It is set apart with the reason; the job behind it runs."""
    async with open_dispatching(tmp_path, ANSWER) as one:
        bad, good = await one.queue_many(2)
        as_text = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        await one.execute(f"UPDATE job_queue SET {column} = {as_text} WHERE id = ?", value, bad)
        await one.start()
        await one.until_ended(bad, good)
        assert (one.status(bad), one.status(good)) == ("dead", "succeeded")
        assert one.error(bad).startswith("cannot be started: ")
        assert one.rows("SELECT job_id FROM journal WHERE kind = 'job.quarantined'") == [(bad,)]


async def test_a_fault_that_is_not_in_its_row_kills_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the claim ends the service; the job stays queued."""

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a bug")

    async with open_dispatching(tmp_path) as one:
        job_id = await one.queue()
        monkeypatch.setattr("ductile.ledger.queue.claim.journal.append_all", broken)
        with pytest.raises(ExceptionGroup):
            async with trio.open_nursery() as nursery:
                await one.start(nursery)
        assert one.status(job_id) == "queued"


async def test_a_delay_that_cannot_be_read_is_over(tmp_path: Path) -> None:
    """Otherwise the job would wait for ever."""
    async with open_dispatching(tmp_path, ANSWER) as one:
        job_id = await one.queue()
        await one.execute("UPDATE job_queue SET lane = NULL, next_retry_at = 'soon', failed_at = created_at")
        await one.start()
        await one.until_ended(job_id)
        assert one.status(job_id) == "succeeded"


# ── paused and stopped jobs ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_plugin_that_is_paused_while_the_claim_waits_does_not_start(tmp_path: Path) -> None:
    """The claim asks again when it has the ledger."""
    async with open_dispatching(tmp_path) as one:
        job_id = await one.queue()
        with one.busy_ledger():
            await trio.testing.wait_all_tasks_blocked()
            await one.start()
            await trio.testing.wait_all_tasks_blocked()
            one.held.add("echo")
        await one.ledger.write(lambda _: None)  # behind the claim
        assert one.status(job_id) == "queued"


async def test_a_plugin_that_is_paused_while_the_disk_is_full_starts_when_it_is_resumed(tmp_path: Path) -> None:
    """What may start is asked anew, not carried along through the wait."""
    async with open_dispatching(tmp_path, ANSWER) as one:
        job_id = await one.queue()
        one.faults.error = FULL
        await one.start()
        await until(lambda: one.faults.refused > 0)
        one.held.add(EVERYTHING)
        one.faults.error = None
        one.ctx.hub.announce_work()
        await trio.testing.wait_all_tasks_blocked()
        assert one.status(job_id) == "queued"
        one.held.clear()
        one.ctx.hub.announce_work()
        await one.until_ended(job_id)
        assert one.status(job_id) == "succeeded"


async def test_a_job_that_is_stopped_between_its_claim_and_its_start_never_starts(tmp_path: Path, disk: Disk) -> None:
    async with open_dispatching(tmp_path, synchronous="full") as one:
        await one.start()
        with disk.held():
            job_id = await one.queue(is_durable=False)
            await until(lambda: one.status(job_id) == "running")
            one.ctx.running.stop_job(job_id, "not needed")
        await one.until_ended(job_id)
        assert (one.status(job_id), one.error(job_id)) == ("dead", "cancelled: not needed")
        assert one.pids(job_id) == []


async def test_a_running_job_can_be_stopped(tmp_path: Path) -> None:
    """Its process gets SIGTERM, and the job says why it ended."""
    async with open_dispatching(tmp_path, UNTIL_TERMINATED) as one:
        await one.start()
        job_id = await one.queue()
        await one.until_started(job_id)
        one.ctx.running.stop_job(job_id, "not needed")
        await one.until_ended(job_id)
        assert (one.status(job_id), one.error(job_id)) == ("dead", "cancelled: not needed")
        assert [code for (code,) in one.rows("SELECT exit_code FROM job_log")] == [3]
        assert not any(map(is_alive, one.pids(job_id)))


async def test_a_request_to_stop_a_job_that_has_ended_does_not_stop_its_next_run(tmp_path: Path) -> None:
    """A cancellation is durable before it reaches the attempt, which may have ended by then."""
    async with open_dispatching(tmp_path, "exit 78") as one:
        await one.start()
        job_id = await one.queue()
        await one.until_ended(job_id)
        await trio.testing.wait_all_tasks_blocked()
        one.ctx.running.stop_job(job_id, "not needed")
        await one.ledger.write(retry, job_id, now=one.ctx.clock.now())
        one.ctx.hub.announce_work()
        await until(lambda: one.rows("SELECT attempt, status FROM job_queue")[0] == (2, "failed"))
        assert "not needed" not in one.error(job_id)


async def test_stderr_of_a_running_job_can_be_read(tmp_path: Path) -> None:
    async with open_dispatching(tmp_path, f"echo here >&2\n{GATED}") as one:
        await one.start()
        job_id = await one.queue()
        await until(lambda: one.ctx.running.live_stderr(job_id) == "here\n")
        await one.finish(job_id)
        await one.until_ended(job_id)
        assert one.ctx.running.live_stderr(job_id) is None


# ── the end of the service ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_drain_waits_for_running_jobs_and_starts_no_more(tmp_path: Path) -> None:
    async with open_dispatching(tmp_path, workers=1) as one:
        async with trio.open_nursery() as nursery:
            await one.start(nursery)
            first, second = await one.queue_many(2)
            await one.until_started(first)
            one.stopping.set()
            one.ctx.hub.announce_work()
            await one.finish(first)
        assert (one.status(first), one.status(second)) == ("succeeded", "queued")


async def test_a_drain_ends_processes_after_its_timeout_and_queues_their_jobs_again(tmp_path: Path) -> None:
    """The attempt does not count."""
    async with open_dispatching(tmp_path, UNTIL_TERMINATED, drain="100ms") as one:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await one.start(nursery)
                job_id = await one.queue()
                await one.until_started(job_id)
                one.stopping.set()
                one.ctx.hub.announce_work()
        assert one.rows("SELECT status, attempt - interruptions FROM job_queue") == [("queued", 1)]
        assert not any(map(is_alive, one.pids(job_id)))


async def test_a_job_that_has_not_started_at_the_end_of_the_drain_is_queued_again(tmp_path: Path, disk: Disk) -> None:
    async with open_dispatching(tmp_path, drain="100ms", synchronous="full") as one, trio.open_nursery() as nursery:
        await one.start(nursery)
        with disk.held():
            job_id = await one.queue(is_durable=False)
            await until(lambda: one.status(job_id) == "running")
            one.stopping.set()
            one.ctx.hub.announce_work()
            await until(lambda: all(attempt.control.stop.reason for attempt in one.ctx.running))
        await until(lambda: one.status(job_id) == "queued")
        assert one.pids(job_id) == []


async def test_cancellation_ends_the_processes_first(tmp_path: Path) -> None:
    """Their jobs are still running in the ledger; the next start recovers them."""
    async with open_dispatching(tmp_path) as one:
        async with trio.open_nursery() as nursery:
            await one.start(nursery)
            jobs = await one.queue_many(2)
            await one.until_started(*jobs)
            nursery.cancel_scope.cancel()
        assert [one.status(job_id) for job_id in jobs] == ["running", "running"]
        assert not any(is_alive(pid) for job_id in jobs for pid in one.pids(job_id))


async def test_all_processes_can_be_killed_without_waiting(tmp_path: Path) -> None:
    async with open_dispatching(tmp_path) as one:
        await one.start()
        job_id = await one.queue(max_attempts=1)
        await one.until_started(job_id)
        one.ctx.processes.kill_all()
        await one.until_ended(job_id)
        assert one.status(job_id) == "dead"


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_survives_a_full_disk(tmp_path: Path) -> None:
    """It is kept and recorded when there is space again; the plugin does not run twice."""
    async with open_dispatching(tmp_path) as one:
        await one.start()
        job_id = await one.queue()
        await one.until_started(job_id)
        one.faults.error = FULL
        await one.finish(job_id)
        await until(lambda: one.faults.refused > 0)
        assert one.status(job_id) == "running"
        one.faults.error = None
        await one.until_ended(job_id)
        assert (one.status(job_id), len(one.pids(job_id))) == ("succeeded", 1)
        assert "the disk is full; trying again" in one.log()


async def test_a_result_survives_the_cancellation_of_the_service(tmp_path: Path) -> None:
    """A completion that waits for the ledger is recorded."""
    async with open_dispatching(tmp_path) as one, trio.open_nursery() as service:
        await one.start(service)
        job_id = await one.queue()
        await one.until_started(job_id)
        with one.busy_ledger():
            await trio.testing.wait_all_tasks_blocked()
            await one.finish(job_id)
            await until(lambda: all(attempt.has_run for attempt in one.ctx.running))
            service.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        await one.until_ended(job_id)
        assert one.status(job_id) == "succeeded"


async def test_a_full_disk_does_not_keep_a_cancelled_service_alive_for_ever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_dispatching(tmp_path) as one:
        one.faults.error = FULL
        began = trio.current_time()
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(LedgerFull):
                await run_job(one.ctx, Attempt(a_job(plugin="gone"), one.snapshot))
        assert LEDGER_TIMEOUT <= trio.current_time() - began < 2 * LEDGER_TIMEOUT


async def test_a_late_result_is_dropped(tmp_path: Path) -> None:
    """The job is not what this attempt ran any more, so the attempt changes nothing."""
    async with open_dispatching(tmp_path) as one:
        await one.start()
        job_id = await one.queue()
        await one.until_started(job_id)
        await one.execute("UPDATE job_queue SET attempt = 2")
        await one.finish(job_id)
        await until(lambda: "late result dropped: the job is running" in one.log())
        assert one.rows("SELECT status, attempt FROM job_queue") == [("running", 2)]
        assert one.rows("SELECT COUNT(*) FROM job_log") == [(0,)]


@pytest.mark.parametrize(
    ("step", "status", "attempts"), [("preflight", ("queued", 2), 0), ("ending_of", ("failed", 1), 1)]
)
async def test_an_internal_error_concerns_its_own_job_only(
    step: str,
    status: tuple[str, int],
    attempts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the plugin has run, the job is tried again; afterwards it fails, because its effects are made."""
    from ductile.engine import run_job as module

    real: Callable[..., Any] = getattr(module, step)

    def broken(*args: Any, **kwargs: Any) -> Any:
        if any(getattr(one, "plugin", None) == "other" for one in args):
            raise RuntimeError("a bug")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, step, broken)
    config = "plugins: {echo: {}, other: {}}\n"
    async with open_dispatching(tmp_path, ANSWER, config=config, other=f'echo >> "{{gates}}/ran"\n{ANSWER}') as one:
        await one.start()
        bad, good = await one.queue("other"), await one.queue()
        await one.until_ended(good)
        await until(lambda: one.status(bad) != "running" and "internal error" in str(one.error(bad)))
        assert one.rows("SELECT status, attempt FROM job_queue WHERE id = ?", bad) == [status]
        assert (one.error(bad), one.status(good)) == ("internal error: RuntimeError('a bug')", "succeeded")
        ran = one.gates / "ran"
        assert (len(ran.read_text().splitlines()) if ran.exists() else 0) == attempts


async def test_the_end_of_a_job_of_an_older_configuration_ends_jobs_that_cannot_run_any_more(tmp_path: Path) -> None:
    """Its follow-up jobs can belong to a plugin that a reload removed while it ran."""
    async with open_dispatching(tmp_path, config="plugins: {echo: {}, other: {}}\n", other=ANSWER) as one:
        await one.start()
        running = await one.queue()
        await one.until_started(running)
        text = (one.home.path / "config.yaml").read_text()
        one.home.write("config.yaml", text.replace("other: {}", "other: {enabled: false}"))
        one.snapshot = snapshot_of(one.home)
        follow_up = await one.queue("other")
        await one.finish(running)
        await one.until_ended(running, follow_up)
        assert (one.status(running), one.status(follow_up)) == ("succeeded", "dead")
        assert "disabled" in one.error(follow_up)


async def test_a_job_is_judged_by_the_configuration_in_use(tmp_path: Path) -> None:
    """A reload enables a plugin while maintenance waits for the ledger; its new jobs must not end as disabled."""
    disabled = "plugins: {echo: {enabled: false}, slow: {}}\n"
    async with open_dispatching(tmp_path, workers=1, config=disabled, slow=GATED) as one:
        await one.start()
        running = await one.queue("slow")
        await one.until_started(running)
        before = one.snapshot
        text = (one.home.path / "config.yaml").read_text()
        one.home.write("config.yaml", text.replace("echo: {enabled: false}", "echo: {}"))
        one.snapshot = snapshot_of(one.home)
        waiting = await one.queue("echo")
        used = iter([before, before])  # what is read before the reload
        await end_unrunnable_jobs(one.ledger, lambda: next(used, one.snapshot), one.ctx.log, now=one.ctx.clock.now())
        assert one.status(waiting) == "queued"
        await one.finish(running, waiting)
        await one.until_ended(waiting)


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_jobs_start_and_end_while_a_sync_is_blocked(tmp_path: Path, disk: Disk) -> None:
    """A slow disk delays what callers hear, not the work: queued jobs that are durable need no other sync."""
    async with open_dispatching(tmp_path, ANSWER, workers=8, synchronous="full") as one:
        jobs = await one.queue_many(30)
        with disk.held():
            await one.start()
            await one.until_ended(*jobs)
        assert {one.status(job_id) for job_id in jobs} == {"succeeded"}


async def test_a_completion_names_the_commit_that_makes_it_durable(tmp_path: Path, disk: Disk) -> None:
    """A caller waits for that commit, so that it never sees a result that a power cut can take back."""
    async with open_dispatching(tmp_path, synchronous="full") as one:
        job_id = await one.queue()
        await one.start()
        await one.until_started(job_id)
        with one.ctx.hub.watch(job_topic(job_id)) as completions, trio.fail_after(30):
            with disk.held():
                await one.finish(job_id)
                completion = await completions.receive()
                assert completion is not None
                assert one.ctx.ledger.durable < completion.commit <= one.ctx.ledger.commits
            await one.ctx.ledger.until_durable(completion.commit)


async def test_a_new_job_does_not_start_before_it_is_durable(tmp_path: Path, disk: Disk) -> None:
    """It waits alone: a durable job that is claimed after it starts at once."""
    async with open_dispatching(tmp_path, synchronous="full") as one:
        one.held.add("echo")
        durable = await one.queue()
        await one.start()
        one.held.clear()
        with disk.held():
            new = await one.queue(is_durable=False)
            await one.until_started(durable)
            await until(lambda: one.status(new) == "running")
            await trio.testing.wait_all_tasks_blocked()
            assert one.pids(new) == []
        await one.finish(durable, new)
        await one.until_ended(durable, new)


async def test_a_job_that_is_queued_again_does_not_start_before_that_is_durable(tmp_path: Path, disk: Disk) -> None:
    """Its row is old: its place in the queue proves nothing."""
    async with open_dispatching(tmp_path, "exit 78", synchronous="full") as one:
        job_id = await one.queue()
        await one.start()
        await one.until_ended(job_id)
        with disk.held():
            await one.ledger.transact(lambda db: retry(db, job_id, now=one.ctx.clock.now()), wait=False)
            one.ctx.hub.announce_work()
            await until(lambda: one.status(job_id) == "running")
            await trio.testing.wait_all_tasks_blocked()
            assert one.status(job_id) == "running", "it would have ended"
        await one.until_ended(job_id)


async def test_a_job_that_never_becomes_durable_does_not_run(tmp_path: Path, disk: Disk) -> None:
    """The service ends, and the next start recovers what the disk has kept."""
    async with open_dispatching(tmp_path, synchronous="full") as one:
        with pytest.RaisesGroup(LedgerLost, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await one.start(nursery)
                with disk.held():
                    job_id = await one.queue(is_durable=False)
                    await until(lambda: one.status(job_id) == "running")
                    disk.fails = True
        assert one.pids(job_id) == []


async def test_the_service_ends_when_the_ledger_breaks(tmp_path: Path, disk: Disk) -> None:
    """And its processes with it: what they lead to cannot be recorded."""
    async with open_dispatching(tmp_path, synchronous="full") as one:
        with pytest.RaisesGroup(LedgerLost, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await one.start(nursery)
                job_id = await one.queue()
                await one.until_started(job_id)
                disk.fails = True
                await one.queue(is_durable=False)
        assert not any(map(is_alive, one.pids(job_id)))


# ── process ids ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_process_id_of_a_long_attempt_is_stored_and_delays_no_other_job(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while the disk is slow: recovery also works without it."""
    monkeypatch.setattr("ductile.engine.process.run.LONG_RUN_SECONDS", 0.0)
    async with open_dispatching(tmp_path, workers=2, synchronous="full") as one:
        long, second, third = await one.queue_many(3)
        with disk.held():
            await one.start()
            await until(lambda: self_of(one, long) == one.pids(long)[:1])
            await one.finish(second)
            await one.until_ended(second)
            await one.until_started(third)
            await until(lambda: self_of(one, third) == one.pids(third)[:1])
        await one.finish(long, third)
        await one.until_ended(long, third)
        assert one.rows("SELECT COUNT(*) FROM journal WHERE kind = 'plugin.spawned'") == [(3,)]


def self_of(one: Dispatching, job_id: str) -> list[int]:
    """Return the process id that the ledger has for a job."""
    return [pid for (pid,) in one.rows("SELECT pid FROM job_queue WHERE id = ? AND pid IS NOT NULL", job_id)]


async def test_a_process_id_is_stored_when_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt runs meanwhile, and its exit is noticed while the id is not stored."""
    monkeypatch.setattr("ductile.engine.process.run.LONG_RUN_SECONDS", 0.2)
    async with open_dispatching(tmp_path) as one:
        await one.start()
        job_id = await one.queue()
        await until(lambda: one.status(job_id) == "running")
        one.faults.error = FULL
        await until(lambda: "process id not stored" in one.log())
        one.faults.error = None
        await until(lambda: self_of(one, job_id) == one.pids(job_id)[:1])
        await one.finish(job_id)
        await one.until_ended(job_id)
        assert one.status(job_id) == "succeeded"


async def test_a_process_that_cannot_be_looked_at_does_not_fail_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor procfs cannot be read."""
    monkeypatch.setattr("ductile.engine.process.run.LONG_RUN_SECONDS", 0.2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_dispatching(tmp_path) as one:
        await one.start()
        job_id = await one.queue()
        await one.until_started(job_id)
        with one.lines.open() as log:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                await until(lambda: "process id not stored" in (log.seek(0), log.read())[1])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await one.finish(job_id)
        await one.until_ended(job_id)
        assert (one.status(job_id), len(one.pids(job_id))) == ("succeeded", 1)


async def test_jobs_that_cannot_be_claimed_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Every new job makes the dispatcher look for work, also while its plugin is paused."""
    async with open_dispatching(tmp_path, config="plugins: {echo: {}, other: {}}\n", other=ANSWER) as one:
        one.held.add("echo")
        await one.start()
        for job_id in await one.queue_many(20):
            assert one.status(job_id) == "queued"
            await trio.testing.wait_all_tasks_blocked()
        assert len(one.ctx.durable_jobs.pending) <= 1
