"""The pipeline examples of the specification, and runs across crashes, reloads and size limits."""

import signal
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from ductile.ledger.reports.trees import tree_outcome
from tests.e2e.recording_plugins import (
    add_recording_plugins,
    emit,
    read_run,
    recorded_requests,
    run_to_end,
    wait_until_idle,
)
from tests.e2e.sample_plugins import FAILING, BlockingPlugin
from tests.e2e.service import Home, Service, Start, poll_until

EXAMPLES = """
plugins:
  source: {}
  yt-dlp-plugin:
    config: {response: {events: [{type: video.downloaded, payload: {path: /tmp/lecture.mp4, title: On ducts}}]}}
  whisper:
    config:
      response: {events: [{type: audio.transcribed, payload: {text: hello, metadata: {lang: en, model: {size: 3}}}}]}
  fabric: {config: {response: {result: in short}}}
  discord-notifier: {}
  s3-archiver: {config: {response: {events: [{type: archived, payload: {key: k-1}}]}}}
  db-indexer: {}
  changelog_microblog: {}
  git_commit_push: {}
  claude_harvest: {notify_on_complete: true, retry: {max_attempts: 1}}
  check_youtube: {notify_on_complete: true, retry: {max_attempts: 1}}
  git-sync: {notify_on_complete: true}
  pagerduty_notify: {}
  discord_notify: {}
  discord-notify: {}
  web_fetch: {config: {response: {events: [{type: fetched, payload: {content: words, status_code: 200}}]}}}
  summarizer: {}
  content_processor:
    config: {response: {result: shorter, events: [{type: processed, payload: {exit_code: 0}}]}}
  classifier: {}
  resizer: {}
  speller: {}
  long-video-handler: {}
  archive: {}

pipelines:
  - name: wisdom-chain
    on: discord.video_link_received
    steps:
      - id: downloader
        uses: yt-dlp-plugin
        baggage:
          video.url: payload.url
      - id: processing
        call: standard-audio-wisdom
      - id: delivery
        split:
          - uses: discord-notifier
          - steps:
              - uses: s3-archiver
              - uses: db-indexer
  - name: standard-audio-wisdom
    on: audio.wisdom_wanted
    steps:
      - id: transcribe
        uses: whisper
        baggage:
          video.title: payload.title
      - id: summarize
        uses: fabric
        baggage:
          from: payload.metadata
          namespace: whisper

  - name: repo-changelog
    on: git_repo_sync.completed
    if:
      path: payload.new_commits
      op: eq
      value: true
    steps:
      - id: changelog
        uses: changelog_microblog
      - id: commit
        uses: git_commit_push
        if:
          path: payload.changed
          op: eq
          value: true

  - name: page-on-claude-failure
    on-hook: job.failed
    from_plugin: claude_harvest
    steps:
      - id: page
        uses: pagerduty_notify
  - name: page-on-high-severity-claude-failure
    on-hook: job.failed
    from_plugin: claude_harvest
    if:
      path: payload.severity
      op: eq
      value: high
    steps:
      - id: page-high
        uses: pagerduty_notify
  - name: notify-on-real-failure
    on-hook: job.failed
    if:
      not:
        path: payload.plugin
        op: in
        value: [check_youtube, jina-reader]
    steps:
      - id: tell
        uses: discord_notify
  - name: failure-announcer
    on-hook: job.completed
    steps:
      - id: announce
        uses: discord-notify
        if:
          path: payload.status
          op: neq
          value: succeeded

  - name: fetch-and-summarize
    on: page.requested
    steps:
      - id: fetch
        uses: web_fetch
        baggage:
          web.url: payload.url
      - id: summarize
        uses: summarizer
        baggage:
          web.content: payload.content
          web.status_code: payload.status_code
  - name: process-and-notify
    on: content.ready
    steps:
      - id: process
        uses: content_processor
        baggage:
          content.text: payload.content
          content.input_status: payload.status
      - id: notify
        uses: discord_notify
        baggage:
          processor.result: payload.result
          processor.exit_code: payload.exit_code
        with:
          message: "{payload.result}"
          summary: "Build finished: {payload.exit_code}, from {context.content.input_status}"
          count: "{payload.exit_code}"

  - name: classify
    on: upload.arrived
    steps:
      - uses: classifier
  - name: images
    on: image.detected
    steps:
      - uses: resizer
  - name: texts
    on: text.detected
    steps:
      - uses: speller

  - name: videos
    on: video.found
    steps:
      - id: long
        uses: long-video-handler
        if:
          all:
            - path: payload.kind
              op: eq
              value: video
            - path: payload.duration_sec
              op: gte
              value: 30
      - id: always
        uses: archive

  - name: gather
    on: gather.requested
    steps:
      - id: each
        foreach: payload.urls
        join: true
        split:
          - {id: get, uses: web_fetch, with: {url: "{item}"}}
          - {id: note, uses: archive, if: {path: item, op: startswith, value: https}}
      - {id: report, uses: summarizer}
  - name: on-error
    on: on-error.requested
    steps:
      - id: risky
        uses: speller
        on_error:
          - {id: notify-error, uses: discord_notify}
      - {id: never, uses: archive}
  - name: tolerant
    on: tolerant.requested
    steps:
      - {id: risky, uses: speller, continue: true}
      - {id: anyway, uses: archive}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service with all examples. Every test leaves it idle."""
    home = Home.make(tmp_path_factory.mktemp("examples") / "ductile")
    add_recording_plugins(home, yaml.safe_load(EXAMPLES)["plugins"])
    home.add(EXAMPLES)
    running = home.start()
    yield running
    running.kill()


# ── examples of the specification ─────────────────────────────────────────────────────────────────────────────────────


def test_a_run_continues_through_a_call_and_a_split(service: Service) -> None:
    """wisdom-chain: the steps of the called pipeline, then both branches of the split, are one run."""
    run = emit(service, "discord.video_link_received", {"url": "https://v/1"})

    assert sorted(run.steps[1:]) == sorted(
        f"{step} succeeded"
        for step in (
            "downloader",
            "processing/transcribe",
            "processing/summarize",
            "step_1",
            "step_3",
            "step_4",
        )
    )
    assert {row["root_job_id"] for row in run.rows} == {run.rows[0]["id"]}
    assert {row["pipeline"] for row in run.rows[1:]} == {"wisdom-chain"}
    assert run.payload("processing/transcribe")["path"] == "/tmp/lecture.mp4"
    assert (run.payload("db-indexer")["key"], run.request("db-indexer")["type"]) == ("k-1", "archived")


def test_claimed_baggage_reaches_every_later_step(service: Service) -> None:
    """Single claims and a bulk import, through the call and into both branches."""
    run = emit(service, "discord.video_link_received", {"url": "https://v/1"})

    assert run.baggage("downloader") == {"video": {"url": "https://v/1"}}
    everything = {
        "video": {"url": "https://v/1", "title": "On ducts"},
        "whisper": {"lang": "en", "model": {"size": 3}},
    }
    for step in ("processing/summarize", "discord-notifier", "s3-archiver", "db-indexer"):
        assert run.baggage(step) == everything


def test_a_step_without_events_passes_payload_and_result_on(service: Service) -> None:
    """The branches get the payload of the step before and the result of this one."""
    run = emit(service, "discord.video_link_received", {"url": "https://v/1"})

    assert run.request("discord-notifier")["type"] == "ductile.step.succeeded"
    assert run.payload("discord-notifier")["text"] == "hello"
    assert run.payload("discord-notifier")["result"] == "in short"


@pytest.mark.parametrize(
    ("payload", "steps"),
    [
        ({"new_commits": False, "changed": True}, []),
        ({}, []),
        ({"new_commits": True, "changed": True}, ["changelog", "commit__switch", "commit"]),
        ({"new_commits": True, "changed": False}, ["changelog", "commit__switch"]),
    ],
)
def test_a_pipeline_condition_skips_the_run_and_a_step_condition_skips_one_step(
    service: Service, payload: dict[str, bool], steps: list[str]
) -> None:
    """repo-changelog: a skipped pipeline is in the journal with the reason."""
    run = emit(service, "git_repo_sync.completed", payload)

    assert run.steps[1:] == [f"{step} succeeded" for step in steps]
    reasons = [(note["pipeline"], note["reason"]) for note in run.journal_data("pipeline.skipped")]
    assert reasons == ([] if steps else [("repo-changelog", "if is false")])


FAILURE = {"response": {"status": "error", "error": "connection reset", "retry": False}}


def test_a_hook_runs_for_the_plugin_it_names(service: Service) -> None:
    """page-on-claude-failure runs. The hook with a condition on the severity is skipped with the reason."""
    run = run_to_end(service, lambda: service.post("claude_harvest", "poll", FAILURE))

    fired = {row["pipeline"] for row in run.rows} - {None}
    assert fired == {"page-on-claude-failure", "notify-on-real-failure", "failure-announcer"}
    page = run.row_of("page")
    assert (page["root_job_id"], page["parent_job_id"], page["submitted_by"]) == (page["id"], run.rows[0]["id"], "hook")
    assert run.request("page")["type"] == "job.failed"
    (skipped,) = run.journal_data("pipeline.skipped")
    assert (skipped["pipeline"], skipped["reason"]) == ("page-on-high-severity-claude-failure", "if is false")


def test_a_hook_is_skipped_for_the_plugins_it_excludes(service: Service) -> None:
    """notify-on-real-failure: other hooks still run for these plugins."""
    run = run_to_end(service, lambda: service.post("check_youtube", "poll", FAILURE))

    assert {row["pipeline"] for row in run.rows} - {None} == {"failure-announcer"}
    skipped = {note["pipeline"]: note["reason"] for note in run.journal_data("pipeline.skipped")}
    assert skipped == {
        "page-on-claude-failure": "from_plugin is claude_harvest",
        "page-on-high-severity-claude-failure": "from_plugin is claude_harvest",
        "notify-on-real-failure": "if is false",
    }


def test_a_failure_hook_gets_a_readable_message(service: Service) -> None:
    """failure-announcer: `message` and `text` need no template."""
    run = run_to_end(service, lambda: service.post("git-sync", "poll", FAILURE))

    payload = run.payload("announce")
    assert payload["message"] == payload["text"] == "Job failed [git-sync]: connection reset"
    assert (payload["plugin"], payload["status"], payload["error"]) == ("git-sync", "failed", "connection reset")
    assert run.request("announce")["type"] == "job.completed"


def test_a_step_condition_of_a_hook_can_skip_successes(service: Service) -> None:
    """`job.completed` triggers the hook for every end of a job."""
    run = run_to_end(service, lambda: service.post("git-sync"))

    assert run.steps == ["git-sync succeeded", "announce__switch succeeded"]


def test_jobs_without_notify_on_complete_trigger_no_hooks(service: Service) -> None:
    """The operator sets `notify_on_complete` per plugin."""
    run = run_to_end(service, lambda: service.post("archive", "poll", FAILURE))

    assert run.steps == ["archive failed"]


def test_baggage_has_only_claimed_values(service: Service) -> None:
    """fetch-and-summarize: each step sees the values that were claimed up to it."""
    run = emit(service, "page.requested", {"url": "https://p", "noise": 1})

    assert run.baggage("fetch") == {"web": {"url": "https://p"}}
    assert run.baggage("summarize") == {"web": {"url": "https://p", "content": "words", "status_code": 200}}
    assert "noise" not in run.payload("summarize")


def test_with_sets_the_payload_and_baggage_stays_unchanged(service: Service) -> None:
    """process-and-notify: a single reference keeps its type, a mixed template is a string."""
    run = emit(service, "content.ready", {"content": "long words", "status": "new"})

    payload = run.payload("notify")
    assert (payload["message"], payload["summary"], payload["count"]) == ("shorter", "Build finished: 0, from new", 0)
    assert run.baggage("notify") == {
        "content": {"text": "long words", "input_status": "new"},
        "processor": {"result": "shorter", "exit_code": 0},
    }


def test_a_claim_on_an_absent_value_fails_its_step(service: Service) -> None:
    """process-and-notify without a status: the tree has the reason."""
    run = emit(service, "content.ready", {"content": "long words"})

    process = run.row_of("process")
    assert (run.steps[1:], process["last_error"]) == (
        ["process failed"],
        "baggage content.input_status: payload.status is absent: payload has no 'status'",
    )


@pytest.mark.parametrize(("kind", "step"), [("image.detected", "resizer"), ("text.detected", "speller")])
def test_an_emitted_event_type_selects_the_next_pipeline(service: Service, kind: str, step: str) -> None:
    """classify: of two pipelines with different event types one runs."""
    event = {"events": [{"type": kind, "payload": {"size": 1}}]}
    run = emit(service, "upload.arrived", {"response": event})

    assert [row["plugin"] for row in run.rows] == ["source", "classifier", step]
    assert run.rows[2]["hops"] == run.rows[1]["hops"] + 1


@pytest.mark.parametrize(
    ("payload", "is_long"),
    [
        ({"kind": "video", "duration_sec": 30}, True),
        ({"kind": "video", "duration_sec": 29.5}, False),
        ({"kind": "audio", "duration_sec": 300}, False),
        ({"kind": "video", "duration_sec": "300"}, False),
        ({"kind": "video"}, False),
    ],
)
def test_a_composite_condition_is_true_when_all_parts_are_true(
    service: Service, payload: dict[str, object], is_long: bool
) -> None:
    """An absent or mistyped value makes it false. The run continues after the skipped step."""
    run = emit(service, "video.found", payload)

    steps = ["long__switch", *(["long"] if is_long else []), "always"]
    assert run.steps[1:] == [f"{step} succeeded" for step in steps]
    result = run.journal_data("step.bypassed")
    assert bool(result) is not is_long
    assert run.request("always")["type"] == ("video.found" if not is_long else "ductile.step.succeeded")


# ── joins and failures ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_foreach_with_a_split_joins_its_results_in_order(service: Service) -> None:
    """The order is by item, then by branch. A skipped branch contributes the payload it was given."""
    run = emit(service, "gather.requested", {"urls": ["http://a", "https://b"]})

    results = run.payload("report")["results"]
    assert [("content" in each, each.get("urls")) for each in results] == [
        (True, None),
        (False, ["http://a", "https://b"]),
        (True, None),
        (False, ["http://a", "https://b"]),
    ]
    assert len(run.rows_of("get")) == 2
    assert sorted(run.requests[row["id"]]["payload"]["url"] for row in run.rows_of("get")) == ["http://a", "https://b"]
    assert (len(run.rows_of("note")), len(run.rows_of("note__switch"))) == (1, 2)
    assert run.row_of("each__join")["status"] == "succeeded"


@pytest.mark.parametrize("by_name", [False, True])
def test_a_foreach_over_an_empty_list_continues_with_no_results(service: Service, by_name: bool) -> None:
    """The join is resolved at once, for runs by event and by name."""
    if by_name:
        run = run_to_end(service, lambda: service.ask("POST", "/pipeline/gather", {"payload": {"urls": []}}))
    else:
        run = emit(service, "gather.requested", {"urls": []})

    assert run.steps[1:] == ["each__join succeeded", "report succeeded"]
    assert run.payload("report")["results"] == []


def test_a_failed_step_with_on_error_leaves_the_run_failed(service: Service) -> None:
    """Only the steps of `on_error` run after it."""
    run = emit(service, "on-error.requested", FAILURE)

    assert run.steps[1:] == ["risky failed", "notify-error succeeded"]
    payload = run.payload("notify-error")
    assert payload["message"] == "Job failed [speller]: connection reset"
    assert payload["input"]["response"] == FAILURE["response"]
    _, tree = service.ask("GET", f"/job/{run.rows[0]['id']}/tree")
    assert [node["status"] for node in tree] == ["succeeded", "failed", "succeeded"]


def test_a_tolerated_failure_is_the_event_of_the_next_step(service: Service) -> None:
    """`continue: true` marks the failed job as tolerated."""
    run = emit(service, "tolerant.requested", FAILURE)

    assert run.steps[1:] == ["risky failed", "anyway succeeded"]
    assert run.request("anyway")["type"] == "ductile.step.failed"
    assert run.row_of("risky")["tolerated"] == 1


# ── crashes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FAN = """
plugins:
  source: {}
  alpha: {}
  beta: {config: {response: {events: [{type: one, payload: {n: 1}}, {type: two, payload: {n: 2}}]}}}
  blocking: {parallelism: 2}
  last: {}
pipelines:
  - name: fan
    on: fan.requested
    steps:
      - {id: first, uses: alpha, baggage: {kept: payload.items}}
      - id: all
        join: true
        split:
          - {id: left, uses: MIDDLE_PLUGIN}
          - {id: each, uses: beta, foreach: payload.items, join: true}
          - steps: [{id: twice, uses: beta}, {id: right, uses: MIDDLE_PLUGIN}]
      - {id: last, uses: last}
"""
WHOLE_RUN = sorted(
    ["source", "first", "left", "each", "each", "each__join", "twice", "right", "right", "all__join", "last"]
)


def check_complete_run(home: Home) -> None:
    """Check that every step of `fan` ran as often as required, succeeded, and was joined in order."""
    run = read_run(home)
    assert sorted(row["step_id"] or row["plugin"] for row in run.rows) == WHOLE_RUN
    assert {row["status"] for row in run.rows} == {"succeeded"}
    assert {row["root_job_id"] for row in run.rows} == {run.rows[0]["id"]}
    left, each, *right = run.payload("last")["results"]
    assert left["items"] == ["u", "v"]
    assert [result["n"] for result in each["results"]] == [1, 2, 1, 2]
    assert sorted(result["n"] for result in right) == [1, 2], "two results of one branch are in no order"
    assert run.baggage("last") == {"kept": ["u", "v"]}


def test_a_run_that_is_killed_in_its_branches_finishes_after_the_next_start(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """Finished jobs do not run repeated, interrupted jobs do, and the join is resolved once."""
    add_recording_plugins(home, ("source", "alpha", "beta", "last"))
    home.add(FAN.replace("MIDDLE_PLUGIN", "blocking"))
    service = start()
    service.post(
        "source", "poll", {"response": {"events": [{"type": "fan.requested", "payload": {"items": ["u", "v"]}}]}}
    )
    blocking.wait_until_started()
    blocking.wait_until_started()
    poll_until(lambda: [row for row in read_run(home).rows_of("each__join") if row["status"] == "succeeded"])

    service.kill()
    start()
    for _ in range(3):
        blocking.wait_until_started()
        blocking.release()
    wait_until_idle(home)

    check_complete_run(home)
    run = read_run(home)
    repeated = sorted(row["step_id"] for row in run.rows if row["attempt"] == 2)
    assert repeated == ["left", "right"]
    assert len(recorded_requests(home)) == len(run.requests), "a plugin ran twice"


@pytest.mark.parametrize(
    "failpoint",
    [
        "record.after_status:5",
        "record.after_children:6",
        "record.after_commit:8",
        "enqueue.after_insert:5",
        "claim.after_commit:6",
        "plugin.exited:5",
    ],
)
def test_a_run_survives_a_crash_at_every_failpoint(home: Home, start: Start, failpoint: str) -> None:
    """No step is lost or duplicated, and no plugin runs more often than it has attempts."""
    add_recording_plugins(home, ("source", "alpha", "beta", "blocking", "last"))
    home.add(FAN.replace("MIDDLE_PLUGIN", "alpha"))
    service = start(environ={"DUCTILE_FAILPOINT": failpoint})
    event = {"response": {"events": [{"type": "fan.requested", "payload": {"items": ["u", "v"]}}]}}
    service.post("source", "poll", event)
    assert service.wait() == -signal.SIGKILL

    start()
    wait_until_idle(home)

    check_complete_run(home)
    run = read_run(home)
    runs = Counter(line["job_id"] for line in recorded_requests(home))
    assert all(1 <= runs[row["id"]] <= row["attempt"] for row in run.rows if row["plugin"] != "core.join")


# ── reloads ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CHAIN = """
plugins: {source: {}, alpha: {}, blocking: {parallelism: 1}}
pipelines:
  - {name: other, on: other.requested, steps: [{id: a, uses: blocking}, {id: b, uses: alpha}, {id: c, uses: alpha}]}
  - {name: fan, on: fan.requested, steps: [{id: s, join: true, split: [{id: a, uses: blocking}]}, {id: b, uses: alpha}]}
  - {name: tolerant, on: tolerant.requested, steps: [{id: a, uses: blocking, continue: true}, {id: b, uses: alpha}]}
"""
CHANGES = [
    (
        "other",
        ", {id: b, uses: alpha}, {id: c",
        ", {id: c",
        ["a succeeded", "b dead"],
        "pipeline other no longer has step b",
    ),
    ("other", "name: other,", "name: another,", ["a succeeded", "b dead"], "pipeline other no longer exists"),
    ("fan", "id: s,", "id: t,", ["a succeeded", "s__join failed"], "pipeline fan no longer has step s__join"),
    ("fan", "name: fan,", "name: fun,", ["a succeeded", "s__join failed"], "pipeline fan no longer has step s__join"),
]


@pytest.mark.parametrize(("name", "old", "new", "steps", "reason"), CHANGES)
def test_a_run_whose_next_step_was_removed_ends_with_the_reason(
    home: Home, start: Start, blocking: BlockingPlugin, name: str, old: str, new: str, steps: list[str], reason: str
) -> None:
    """The running step ends normally, the next one is dead or failed, and no job stays open."""
    add_recording_plugins(home, ("source", "alpha"))
    home.add(CHAIN)
    service = start()
    service.post("source", "poll", {"response": {"events": [{"type": f"{name}.requested"}]}})
    blocking.wait_until_started()
    home.replace(old, new)
    status, answer = service.ask("POST", "/system/reload")
    assert (status, answer["status"]) == (200, "ok")
    blocking.release()
    wait_until_idle(home)

    run = read_run(home)
    assert run.steps[1:] == steps
    assert run.rows[-1]["last_error"] == reason


def test_a_queued_job_whose_step_was_removed_is_dead_with_the_reason(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """This is decided when the job is claimed."""
    add_recording_plugins(home, ("source", "alpha"))
    home.add(CHAIN)
    service = start()
    for _ in range(2):
        service.post("source", "poll", {"response": {"events": [{"type": "other.requested"}]}})
    blocking.wait_until_started()
    home.replace("[{id: a, uses: blocking}, {id: b", "[{id: b")
    assert service.ask("POST", "/system/reload")[0] == 200
    blocking.release()
    wait_until_idle(home)

    first, second = read_run(home).rows_of("a")
    assert (first["status"], second["status"]) == ("succeeded", "dead")
    assert second["last_error"] == "pipeline other no longer has step a"


def test_a_removed_tolerated_step_fails_its_run(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """The steps after it did not run."""
    add_recording_plugins(home, ("source", "alpha"))
    home.add(CHAIN)
    service = start()
    first, second = (service.ask("POST", "/pipeline/tolerant")[1]["job_id"] for _ in range(2))
    blocking.wait_until_started()
    home.replace("{id: a, uses: blocking, continue", "{id: c, uses: blocking, continue")
    assert service.ask("POST", "/system/reload")[0] == 200
    blocking.release()
    wait_until_idle(home)

    assert [row["status"] for row in read_run(home).rows] == ["succeeded", "dead", "succeeded"]
    with home.read_ledger() as db:
        assert [tree_outcome(db, root).status for root in (first, second)] == ["succeeded", "failed"]


def test_a_run_fails_when_a_reload_removes_the_tolerance_of_its_failed_step(home: Home, start: Start) -> None:
    """The run does not continue after the cancelled step."""
    add_recording_plugins(home, ("source", "alpha", "blocking"))
    home.add(CHAIN)
    service = start()
    assert service.ask("POST", "/queue/pause")[0] == 200
    root = service.ask("POST", "/pipeline/tolerant")[1]["job_id"]
    home.replace("uses: blocking, continue: true", "uses: blocking")
    assert service.ask("POST", "/system/reload")[0] == 200
    assert service.ask("POST", f"/job/{root}/cancel")[0] == 200

    with home.read_ledger() as db:
        assert (len(read_run(home).rows), tree_outcome(db, root).status) == (1, "failed")


def test_a_restored_tolerated_step_is_tolerated_again(home: Home, start: Start) -> None:
    """After one retry the run continues and succeeds. A second retry is refused."""
    add_recording_plugins(home, ("alpha",))
    home.plugin("failing", FAILING)
    home.add("plugins: {alpha: {}, failing: {}}\npipelines:\n")
    home.add("  - {name: tolerant, on: x, steps: [{id: a, uses: failing, continue: true}, {id: b, uses: alpha}]}\n")
    service, text = start(), (home.path / "config.yaml").read_text()
    assert service.ask("POST", "/queue/pause")[0] == 200
    root = service.ask("POST", "/pipeline/tolerant")[1]["job_id"]
    for pipeline in (text.replace("id: a,", "id: c,"), text):
        home.write("config.yaml", pipeline)
        assert service.ask("POST", "/system/reload")[0] == 200
        service.ask("POST", "/queue/resume")
        wait_until_idle(home)

    assert service.ask("POST", f"/job/{root}/retry")[0] == 202
    wait_until_idle(home)
    assert service.ask("POST", f"/job/{root}/retry")[0] == 409
    with home.read_ledger() as db:
        assert (read_run(home).steps, tree_outcome(db, root).status) == (["a failed", "b succeeded"], "succeeded")


# ── size limits ───────────────────────────────────────────────────────────────────────────────────────────────────────

FAN_OUT = """
plugins: {alpha: {}, failing: {}}
pipelines:
  - name: refused
    on: x
    steps:
      - {id: a, uses: alpha, continue: true, with: {x: "{payload.gone}"}}
      - &rest {uses: alpha, foreach: payload.input.list}
  - {name: failed, on: x, steps: [{id: a, uses: failing, continue: true}, *rest]}
  - {name: cancelled, on: x, steps: [{id: a, uses: alpha, continue: true}, *rest]}
"""


def test_a_tolerated_failure_that_exceeds_the_fan_out_limit_fails_its_run(home: Home, start: Start) -> None:
    """The next steps do not run, whether the step was refused, failed or was cancelled."""
    add_recording_plugins(home, ("alpha",))
    home.plugin("failing", FAILING)
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("service:\n", "service:\n  limits: {fan_out: 20000}\n") + FAN_OUT)
    service = start()
    body = {"payload": {"list": ["x" * 200] * 60}}
    roots = [service.ask("POST", f"/pipeline/{name}", body)[1]["job_id"] for name in ("refused", "failed")]
    wait_until_idle(home)
    assert service.ask("POST", "/queue/pause")[0] == 200
    roots.append(service.ask("POST", "/pipeline/cancelled", body)[1]["job_id"])
    assert service.ask("POST", f"/job/{roots[-1]}/cancel")[0] == 200

    with home.read_ledger() as db:
        assert [tree_outcome(db, root).status for root in roots] == ["failed"] * 3
    run = read_run(home)
    assert len(run.rows) == len(run.journal_data("run.ended")) == 3
    assert run.row_of("failing")["last_error"] == "no luck; it passes more than 20,000 bytes to the next jobs"
