"""`ductile queue` without a service, and the aliases of commands."""

from pathlib import Path

import pytest

from ductile.cli import SHORT_FORMS
from ductile.ledger.admin import pauses
from ductile.ledger.admin.job_actions import count_purgeable, purge
from ductile.ledger.storage.connections import transaction
from tests.cli.conftest import Run
from tests.cli.history import past_of


@pytest.fixture
def waiting(demo: Path) -> Path:
    """One running job and three queued jobs, one of a paused plugin."""
    with past_of(demo) as past:
        past.loads("cfg", {"service": {"max_workers": 2}, "plugins": {"echo": {"parallelism": 1}}})
        past.enqueue()
        past.claim_one()
        past.enqueue()
        past.enqueue()
        past.enqueue(plugin="other")
        with transaction(past.db):
            pauses.pause(past.db, "other", "not now", now=past.now)
    return demo


def test_queue_status_counts_jobs(run: Run, waiting: Path) -> None:
    shown = run("queue", "status", "--config", waiting, "--json").json

    assert (shown["depth"], shown["queued"], shown["orphaned"], shown["service_running"]) == (4, 3, 1, False)
    assert [one["plugin"] for one in shown["paused"]] == ["other"]
    assert shown["oldest_claimable"]["plugin"] == "echo"
    assert [(entry["plugin"], entry["ready"], entry["slots"]) for entry in shown["plugins"]] == [
        ("echo", 2, 1),
        ("other", 1, 1),
    ]


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_queue_without_an_action_shows_the_status(run: Run, waiting: Path, args: tuple[str, ...]) -> None:
    assert run("queue", "--config", waiting, *args).stdout == run("queue", "status", "--config", waiting, *args).stdout


def test_queue_has_help(run: Run) -> None:
    assert "purge" in run("queue", "--help").stdout


def test_queue_list_has_the_reasons_of_each_job(run: Run, waiting: Path) -> None:
    """Oldest first."""
    jobs = run("queue", "list", "--config", waiting, "--json").json["jobs"]

    codes = [[reason["code"] for reason in job["why"]] for job in jobs]
    assert codes == [
        ["service_down", "plugin_full"],
        ["service_down", "plugin_full", "behind"],
        ["service_down", "paused"],
    ]


def test_queue_list_and_job_list_have_the_same_members(run: Run, waiting: Path) -> None:
    listed = {job["job_id"]: job for job in run("job", "list", "--config", waiting, "--json").json["jobs"]}
    for job in run("queue", "list", "--config", waiting, "--json").json["jobs"]:
        assert job.pop("why")
        assert job == listed[job["job_id"]]


def test_queue_list_filters_by_plugin_and_reports_more(run: Run, waiting: Path) -> None:
    shown = run("queue", "list", "--config", waiting, "--plugin", "echo", "--limit", "1", "--json").json

    assert (len(shown["jobs"]), shown["more"]) == (1, True)


@pytest.mark.parametrize("flags", [(), ("--all", "--plugin", "echo"), ("--all", "--status", "running")])
def test_a_purge_requires_plugin_or_all(run: Run, waiting: Path, flags: tuple[str, ...]) -> None:
    assert run("queue", "purge", "--config", waiting, *flags).exit_code == 2


@pytest.mark.parametrize("args", [("pause",), ("resume",), ("purge", "--all"), ("pause", "--plugin", "echo")])
def test_changing_the_queue_needs_the_service(run: Run, waiting: Path, args: tuple[str, ...]) -> None:
    answer = run("queue", *args, "--config", waiting, "--json")

    assert (answer.exit_code, answer.json["code"]) == (69, "unreachable")


def test_a_purge_runs_in_batches_and_spares_later_jobs(waiting: Path) -> None:
    """Running jobs continue."""
    with past_of(waiting) as past:
        found = count_purgeable(past.db, None, 1 << 62)
        late = past.enqueue().job_id
        portions: list[int] = []
        while not portions or portions[-1]:
            with transaction(past.db):
                portions.append(len(purge(past.db, None, found.up_to, "away", now=past.now, limit=2)))
        left = past.db.execute("SELECT id, status FROM job_queue WHERE completed_at IS NULL ORDER BY seq").fetchall()
        errors = past.db.execute("SELECT DISTINCT last_error FROM job_queue WHERE status = 'dead'").fetchall()

    assert (found.count, portions) == (3, [2, 1, 0])
    assert [status for _, status in left] == ["running", "queued"]
    assert (left[1][0], errors) == (late, [("cancelled: away",)])


def test_a_purge_of_one_plugin_leaves_the_others(waiting: Path) -> None:
    with past_of(waiting) as past:
        with transaction(past.db):
            ended = purge(past.db, "echo", 1 << 62, "away", now=past.now)
        assert ({one.plugin for one in ended}, count_purgeable(past.db, None, 1 << 62).count) == ({"echo"}, 1)


@pytest.mark.parametrize(("short", "whole"), SHORT_FORMS.items())
def test_the_help_of_an_alias_differs_only_in_the_name(run: Run, short: str, whole: tuple[str, str]) -> None:
    help_text = run(short, "--help").stdout

    assert help_text == run(*whole, "--help").stdout.replace(f"ductile {' '.join(whole)}", f"ductile {short}")


def test_an_alias_does_the_same(run: Run, demo: Path) -> None:
    assert run("plugins", "--config", demo, "--json").json == run("plugin", "list", "--config", demo, "--json").json
