"""The examples of the specification, run as they are written: real plugins, the real service, real rows."""

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import yaml

from ductile.ledger.reports.trees import tree_outcome
from tests.e2e.actors import act, cast, emit, look, until, until_idle
from tests.e2e.furnished import Door
from tests.e2e.service import Home, Service

Start = Callable[..., Service]

EXAMPLES = """
plugins:
  source: {}
  yt-dlp-plugin:
    config: {say: {events: [{type: video.downloaded, payload: {path: /tmp/lecture.mp4, title: On ducts}}]}}
  whisper:
    config:
      say: {events: [{type: audio.transcribed, payload: {text: hello, metadata: {lang: en, model: {size: 3}}}}]}
  fabric: {config: {say: {result: in short}}}
  discord-notifier: {}
  s3-archiver: {config: {say: {events: [{type: archived, payload: {key: k-1}}]}}}
  db-indexer: {}
  changelog_microblog: {}
  git_commit_push: {}
  claude_harvest: {notify_on_complete: true, retry: {max_attempts: 1}}
  check_youtube: {notify_on_complete: true, retry: {max_attempts: 1}}
  git-sync: {notify_on_complete: true}
  pagerduty_notify: {}
  discord_notify: {}
  discord-notify: {}
  web_fetch: {config: {say: {events: [{type: fetched, payload: {content: words, status_code: 200}}]}}}
  summarizer: {}
  content_processor:
    config: {say: {result: shorter, events: [{type: processed, payload: {exit_code: 0}}]}}
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
      - id: page-loudly
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
    on: page.wanted
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
    on: gather.wanted
    steps:
      - id: each
        foreach: payload.urls
        join: true
        split:
          - {id: get, uses: web_fetch, with: {url: "{item}"}}
          - {id: note, uses: archive, if: {path: item, op: startswith, value: https}}
      - {id: report, uses: summarizer}
  - name: careful
    on: careful.wanted
    steps:
      - id: risky
        uses: speller
        on_error:
          - {id: apologise, uses: discord_notify}
      - {id: never, uses: archive}
  - name: tolerant
    on: tolerant.wanted
    steps:
      - {id: risky, uses: speller, continue: true}
      - {id: anyway, uses: archive}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with all examples; every test leaves it idle."""
    home = Home.make(tmp_path_factory.mktemp("examples") / "ductile")
    cast(home, yaml.safe_load(EXAMPLES)["plugins"])
    home.add(EXAMPLES)
    running = home.start()
    yield running
    running.kill()


# ── the examples ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uses_then_call_then_split(service: Service) -> None:
    """wisdom-chain: the called pipeline's steps run inside the run, then the steps after the call, in both branches."""
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
    assert (run.payload("db-indexer")["key"], run.told("db-indexer")["type"]) == ("k-1", "archived")


def test_what_is_claimed_stays_for_the_rest_of_the_run(service: Service) -> None:
    """Through a call and back, in both branches of the split: single claims and a bulk import."""
    run = emit(service, "discord.video_link_received", {"url": "https://v/1"})

    assert run.baggage("downloader") == {"video": {"url": "https://v/1"}}
    everything = {
        "video": {"url": "https://v/1", "title": "On ducts"},
        "whisper": {"lang": "en", "model": {"size": 3}},
    }
    for step in ("processing/summarize", "discord-notifier", "s3-archiver", "db-indexer"):
        assert run.baggage(step) == everything


def test_a_silent_step_in_the_middle_hands_the_payload_on(service: Service) -> None:
    """The summary says nothing: the branches get what it got, and its result."""
    run = emit(service, "discord.video_link_received", {"url": "https://v/1"})

    assert run.told("discord-notifier")["type"] == "ductile.step.succeeded"
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
def test_a_pipeline_if_stops_everything_and_a_step_if_one_step(
    service: Service, payload: dict[str, bool], steps: list[str]
) -> None:
    """repo-changelog: no dispatch at all where the pipeline's own condition is false, and a note that says why."""
    run = emit(service, "git_repo_sync.completed", payload)

    assert run.steps[1:] == [f"{step} succeeded" for step in steps]
    reasons = [(note["pipeline"], note["reason"]) for note in run.notes("pipeline.skipped")]
    assert reasons == ([] if steps else [("repo-changelog", "if is false")])


FAILS = {"say": {"status": "error", "error": "connection reset", "retry": False}}


def test_a_hook_pages_for_the_plugin_it_names(service: Service) -> None:
    """page-on-claude-failure fires; the one that also wants a severity does not, and the journal says so."""
    run = act(service, lambda: service.post("claude_harvest", "poll", FAILS))

    fired = {row["pipeline"] for row in run.rows} - {None}
    assert fired == {"page-on-claude-failure", "notify-on-real-failure", "failure-announcer"}
    page = run.one("page")
    assert (page["root_job_id"], page["parent_job_id"], page["submitted_by"]) == (page["id"], run.rows[0]["id"], "hook")
    assert run.told("page")["type"] == "job.failed"
    (skipped,) = run.notes("pipeline.skipped")
    assert (skipped["pipeline"], skipped["reason"]) == ("page-on-high-severity-claude-failure", "if is false")


def test_a_hook_stays_silent_for_the_plugins_it_excludes(service: Service) -> None:
    """notify-on-real-failure: a known noisy plugin is announced by the others only."""
    run = act(service, lambda: service.post("check_youtube", "poll", FAILS))

    assert {row["pipeline"] for row in run.rows} - {None} == {"failure-announcer"}
    skipped = {note["pipeline"]: note["reason"] for note in run.notes("pipeline.skipped")}
    assert skipped == {
        "page-on-claude-failure": "from_plugin is claude_harvest",
        "page-on-high-severity-claude-failure": "from_plugin is claude_harvest",
        "notify-on-real-failure": "if is false",
    }


def test_a_failure_is_announced_in_words_for_people(service: Service) -> None:
    """failure-announcer: `message` and `text` need no template."""
    run = act(service, lambda: service.post("git-sync", "poll", FAILS))

    told = run.payload("announce")
    assert told["message"] == told["text"] == "Job failed [git-sync]: connection reset"
    assert (told["plugin"], told["status"], told["error"]) == ("git-sync", "failed", "connection reset")
    assert run.told("announce")["type"] == "job.completed"


def test_a_success_reaches_the_announcer_and_is_not_announced(service: Service) -> None:
    """`job.completed` fires for every end; the `if` of the step decides."""
    run = act(service, lambda: service.post("git-sync"))

    assert run.steps == ["git-sync succeeded", "announce__switch succeeded"]


def test_plugins_that_did_not_opt_in_fire_no_hooks(service: Service) -> None:
    """`notify_on_complete` is the operator's choice."""
    run = act(service, lambda: service.post("archive", "poll", FAILS))

    assert run.steps == ["archive failed"]


def test_facts_are_durable_when_they_are_claimed_and_only_then(service: Service) -> None:
    """fetch-and-summarize: each step sees what was claimed up to it."""
    run = emit(service, "page.wanted", {"url": "https://p", "noise": 1})

    assert run.baggage("fetch") == {"web": {"url": "https://p"}}
    assert run.baggage("summarize") == {"web": {"url": "https://p", "content": "words", "status_code": 200}}
    assert "noise" not in run.payload("summarize")


def test_with_shapes_the_request_and_baggage_the_run(service: Service) -> None:
    """process-and-notify: a reference alone keeps its type, mixed text is text."""
    run = emit(service, "content.ready", {"content": "long words", "status": "new"})

    told = run.payload("notify")
    assert (told["message"], told["summary"], told["count"]) == ("shorter", "Build finished: 0, from new", 0)
    assert run.baggage("notify") == {
        "content": {"text": "long words", "input_status": "new"},
        "processor": {"result": "shorter", "exit_code": 0},
    }


def test_a_claim_on_nothing_fails_its_step_visibly(service: Service) -> None:
    """process-and-notify without a status: the reason stands in the tree."""
    run = emit(service, "content.ready", {"content": "long words"})

    process = run.one("process")
    assert (run.steps[1:], process["last_error"]) == (
        ["process failed"],
        "baggage content.input_status: payload.status is absent: payload has no 'status'",
    )


@pytest.mark.parametrize(("kind", "step"), [("image.detected", "resizer"), ("text.detected", "speller")])
def test_a_plugin_chooses_the_way_by_the_event_it_emits(service: Service, kind: str, step: str) -> None:
    """classify: two pipelines wait for two types; the other one does not run."""
    said = {"events": [{"type": kind, "payload": {"size": 1}}]}
    run = emit(service, "upload.arrived", {"say": said})

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
def test_a_composite_condition_holds_when_all_of_it_does(
    service: Service, payload: dict[str, object], is_long: bool
) -> None:
    """An absent or mistyped value is simply not enough; the run goes on behind the step."""
    run = emit(service, "video.found", payload)

    steps = ["long__switch", *(["long"] if is_long else []), "always"]
    assert run.steps[1:] == [f"{step} succeeded" for step in steps]
    result = run.notes("step.bypassed")
    assert bool(result) is not is_long
    assert run.told("always")["type"] == ("video.found" if not is_long else "ductile.step.succeeded")


# ── beyond the examples ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_loop_with_branches_is_joined_in_order(service: Service) -> None:
    """Item by item, branch by branch: what was bypassed arrives with the payload it came with."""
    run = emit(service, "gather.wanted", {"urls": ["http://a", "https://b"]})

    results = run.payload("report")["results"]
    assert [("content" in each, each.get("urls")) for each in results] == [
        (True, None),
        (False, ["http://a", "https://b"]),
        (True, None),
        (False, ["http://a", "https://b"]),
    ]
    assert len(run.of("get")) == 2
    assert sorted(run.heard[row["id"]]["payload"]["url"] for row in run.of("get")) == ["http://a", "https://b"]
    assert (len(run.of("note")), len(run.of("note__switch"))) == (1, 2)
    assert run.one("each__join")["status"] == "succeeded"


@pytest.mark.parametrize("by_name", [False, True])
def test_a_loop_over_nothing_goes_on_with_no_results(service: Service, by_name: bool) -> None:
    """A join that waits for nobody is decided at once, however its run began."""
    if by_name:
        run = act(service, lambda: service.ask("POST", "/pipeline/gather", {"payload": {"urls": []}}))
    else:
        run = emit(service, "gather.wanted", {"urls": []})

    assert run.steps[1:] == ["each__join succeeded", "report succeeded"]
    assert run.payload("report")["results"] == []


def test_a_failed_step_is_answered_and_the_tree_stays_failed(service: Service) -> None:
    """`on_error` leads nowhere else."""
    run = emit(service, "careful.wanted", FAILS)

    assert run.steps[1:] == ["risky failed", "apologise succeeded"]
    told = run.payload("apologise")
    assert told["message"] == "Job failed [speller]: connection reset"
    assert told["input"]["say"] == FAILS["say"]
    _, tree = service.ask("GET", f"/job/{run.rows[0]['id']}/tree")
    assert [node["status"] for node in tree] == ["succeeded", "failed", "succeeded"]


def test_a_tolerated_failure_is_passed(service: Service) -> None:
    """`continue: true`: the next step gets the failure as its event."""
    run = emit(service, "tolerant.wanted", FAILS)

    assert run.steps[1:] == ["risky failed", "anyway succeeded"]
    assert run.told("anyway")["type"] == "ductile.step.failed"
    assert run.one("risky")["tolerated"] == 1


# ── crashes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

JOINED = """
plugins:
  source: {}
  alpha: {}
  beta: {config: {say: {events: [{type: one, payload: {n: 1}}, {type: two, payload: {n: 2}}]}}}
  door: {parallelism: 2}
  last: {}
pipelines:
  - name: fan
    on: fan.wanted
    steps:
      - {id: first, uses: alpha, baggage: {kept: payload.items}}
      - id: all
        join: true
        split:
          - {id: left, uses: MIDDLE}
          - {id: each, uses: beta, foreach: payload.items, join: true}
          - steps: [{id: twice, uses: beta}, {id: right, uses: MIDDLE}]
      - {id: last, uses: last}
"""
WHOLE_RUN = sorted(
    ["source", "first", "left", "each", "each", "each__join", "twice", "right", "right", "all__join", "last"]
)


def is_whole(home: Home) -> None:
    """Every step of `fan` is there as often as it must be, has succeeded, and was joined in order."""
    run = look(home)
    assert sorted(row["step_id"] or row["plugin"] for row in run.rows) == WHOLE_RUN
    assert {row["status"] for row in run.rows} == {"succeeded"}
    assert {row["root_job_id"] for row in run.rows} == {run.rows[0]["id"]}
    left, each, *right = run.payload("last")["results"]
    assert left["items"] == ["u", "v"]
    assert [result["n"] for result in each["results"]] == [1, 2, 1, 2]
    assert sorted(result["n"] for result in right) == [1, 2], "two arrivals of one branch come as they come"
    assert run.baggage("last") == {"kept": ["u", "v"]}


@pytest.fixture
def door(home: Home) -> Iterator[Door]:
    made = Door.make(home)
    yield made
    made.close()


def test_a_run_that_is_killed_in_its_branches_is_finished_after_the_next_start(
    home: Home, start: Start, door: Door
) -> None:
    """What was done stays done, what was under way is done again, and the join happens once."""
    cast(home, ("source", "alpha", "beta", "last"))
    home.add(JOINED.replace("MIDDLE", "door"))
    service = start()
    service.post("source", "poll", {"say": {"events": [{"type": "fan.wanted", "payload": {"items": ["u", "v"]}}]}})
    door.reached()
    door.reached()
    until(lambda: [row for row in look(home).of("each__join") if row["status"] == "succeeded"])

    service.kill()
    start()
    for _ in range(3):
        door.reached()
        door.let_through()
    until_idle(home)

    is_whole(home)
    run = look(home)
    again = sorted(row["step_id"] for row in run.rows if row["attempt"] == 2)
    assert again == ["left", "right"]
    assert len((home.path / "heard.jsonl").read_text().splitlines()) == len(run.heard), "no actor ran twice"


@pytest.mark.parametrize(
    "place",
    [
        "record.after_status:5",
        "record.after_children:6",
        "record.after_commit:8",
        "enqueue.after_insert:5",
        "claim.after_commit:6",
        "plugin.exited:5",
    ],
)
def test_a_run_survives_the_death_of_the_core_at_any_place(home: Home, start: Start, place: str) -> None:
    """No step is lost, none is doubled in the ledger, and no plugin runs more often than it has attempts."""
    cast(home, ("source", "alpha", "beta", "door", "last"))
    home.add(JOINED.replace("MIDDLE", "alpha"))
    service = start(environ={"DUCTILE_FAILPOINT": place})
    said = {"say": {"events": [{"type": "fan.wanted", "payload": {"items": ["u", "v"]}}]}}
    service.post("source", "poll", said)
    assert service.wait() == -signal.SIGKILL

    start()
    until_idle(home)

    is_whole(home)
    run = look(home)
    times = Counter(json.loads(line)["job_id"] for line in (home.path / "heard.jsonl").read_text().splitlines())
    assert all(1 <= times[row["id"]] <= row["attempt"] for row in run.rows if row["plugin"] != "core.join")


# ── reloads ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CHAIN = """
plugins: {source: {}, alpha: {}, door: {parallelism: 1}}
pipelines:
  - {name: other, on: other.wanted, steps: [{id: a, uses: door}, {id: b, uses: alpha}, {id: c, uses: alpha}]}
  - {name: fan, on: fan.wanted, steps: [{id: s, join: true, split: [{id: a, uses: door}]}, {id: b, uses: alpha}]}
  - {name: calm, on: calm.wanted, steps: [{id: a, uses: door, continue: true}, {id: b, uses: alpha}]}
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
def test_a_run_whose_next_step_is_removed_has_a_visible_end(
    home: Home, start: Start, door: Door, name: str, old: str, new: str, steps: list[str], reason: str
) -> None:
    """The step that runs ends as it began; what cannot go on says why in the tree, and nothing stays open."""
    cast(home, ("source", "alpha"))
    home.add(CHAIN)
    service = start()
    service.post("source", "poll", {"say": {"events": [{"type": f"{name}.wanted"}]}})
    door.reached()
    text = (home.path / "config.yaml").read_text()
    assert old in text
    home.write("config.yaml", text.replace(old, new))
    status, answer = service.ask("POST", "/system/reload")
    assert (status, answer["status"]) == (200, "reloaded")
    door.let_through()
    until_idle(home)

    run = look(home)
    assert run.steps[1:] == steps
    assert run.rows[-1]["last_error"] == reason


def test_a_queued_job_whose_step_is_removed_is_dead_when_its_turn_comes(home: Home, start: Start, door: Door) -> None:
    """It is not run as something else, and not kept for ever."""
    cast(home, ("source", "alpha"))
    home.add(CHAIN)
    service = start()
    for _ in range(2):
        service.post("source", "poll", {"say": {"events": [{"type": "other.wanted"}]}})
    door.reached()
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("[{id: a, uses: door}, {id: b", "[{id: b"))
    assert service.ask("POST", "/system/reload")[0] == 200
    door.let_through()
    until_idle(home)

    first, second = look(home).of("a")
    assert (first["status"], second["status"]) == ("succeeded", "dead")
    assert second["last_error"] == "pipeline other no longer has step a"


def test_a_tolerated_step_that_is_removed_fails_its_run(home: Home, start: Start, door: Door) -> None:
    """What stands behind it never ran: nobody may take that for a success."""
    cast(home, ("source", "alpha"))
    home.add(CHAIN)
    service = start()
    first, second = (service.ask("POST", "/pipeline/calm")[1]["job_id"] for _ in range(2))
    door.reached()
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("{id: a, uses: door, continue", "{id: c, uses: door, continue"))
    assert service.ask("POST", "/system/reload")[0] == 200
    door.let_through()
    until_idle(home)

    assert [row["status"] for row in look(home).rows] == ["succeeded", "dead", "succeeded"]
    with home.read_ledger() as db:
        assert [tree_outcome(db, root).status for root in (first, second)] == ["succeeded", "failed"]


def test_a_step_that_is_no_longer_tolerated_fails_its_run(home: Home, start: Start) -> None:
    """The run does not go on behind it any more, so nobody may take it for a success."""
    cast(home, ("source", "alpha", "door"))
    home.add(CHAIN)
    service = start()
    assert service.ask("POST", "/queue/pause")[0] == 200
    root = service.ask("POST", "/pipeline/calm")[1]["job_id"]
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("uses: door, continue: true", "uses: door"))
    assert service.ask("POST", "/system/reload")[0] == 200
    assert service.ask("POST", f"/job/{root}/cancel")[0] == 200

    with home.read_ledger() as db:
        assert (len(look(home).rows), tree_outcome(db, root).status) == (1, "failed")


def test_a_removed_step_that_is_put_back_is_tolerated_again(home: Home, start: Start) -> None:
    """When it is tried once more, its run goes on behind it; so the failure does not count, and that happens once."""
    cast(home, ("alpha",))
    home.plugin("sad", SAD)
    home.add("plugins: {alpha: {}, sad: {}}\npipelines:\n")
    home.add("  - {name: calm, on: x, steps: [{id: a, uses: sad, continue: true}, {id: b, uses: alpha}]}\n")
    service, text = start(), (home.path / "config.yaml").read_text()
    assert service.ask("POST", "/queue/pause")[0] == 200
    root = service.ask("POST", "/pipeline/calm")[1]["job_id"]
    for pipeline in (text.replace("id: a,", "id: c,"), text):
        home.write("config.yaml", pipeline)
        assert service.ask("POST", "/system/reload")[0] == 200
        service.ask("POST", "/queue/resume")
        until_idle(home)

    assert service.ask("POST", f"/job/{root}/retry")[0] == 202
    until_idle(home)
    assert service.ask("POST", f"/job/{root}/retry")[0] == 409
    with home.read_ledger() as db:
        assert (look(home).steps, tree_outcome(db, root).status) == (["a failed", "b succeeded"], "succeeded")


# ── too much ────────────────────────────────────────────────────────────────────────────────────────────────────────

TOO_MUCH = """
plugins: {alpha: {}, sad: {}}
pipelines:
  - name: refused
    on: x
    steps:
      - {id: a, uses: alpha, continue: true, with: {x: "{payload.gone}"}}
      - &rest {uses: alpha, foreach: payload.input.list}
  - {name: failed, on: x, steps: [{id: a, uses: sad, continue: true}, *rest]}
  - {name: cancelled, on: x, steps: [{id: a, uses: alpha, continue: true}, *rest]}
"""
SAD = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "no luck", "retry": false}\'\n'


def test_a_tolerated_failure_behind_which_there_is_too_much_fails_its_run(home: Home, start: Start) -> None:
    """However the step came to fail: what was to follow does not, and the run says so."""
    cast(home, ("alpha",))
    home.plugin("sad", SAD)
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("service:\n", "service:\n  limits: {fan_out: 20000}\n") + TOO_MUCH)
    service = start()
    body = {"payload": {"list": ["x" * 200] * 60}}
    roots = [service.ask("POST", f"/pipeline/{name}", body)[1]["job_id"] for name in ("refused", "failed")]
    until_idle(home)
    assert service.ask("POST", "/queue/pause")[0] == 200
    roots.append(service.ask("POST", "/pipeline/cancelled", body)[1]["job_id"])
    assert service.ask("POST", f"/job/{roots[-1]}/cancel")[0] == 200

    with home.read_ledger() as db:
        assert [tree_outcome(db, root).status for root in roots] == ["failed"] * 3
    run = look(home)
    assert len(run.rows) == len(run.notes("run.ended")) == 3
    assert run.one("sad")["last_error"] == "no luck; it passes more than 20,000 bytes to the next jobs"
