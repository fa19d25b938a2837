"""The runs of the play, told a second time by hand: which rows each must have left, with which payload and baggage.

Follows what every job handed on through the pipelines as their author means them. Each row must stand where the story
needs one, and no row may be left over. The checker asks.
"""

from collections.abc import Iterator
from functools import lru_cache

from scripts.tortures.case import FAILURES, FINAL, Case, Row, fails_its_tree
from scripts.tortures.story import HOOKS, JOINS, STEPS, End, Ends, Place, Story, payload_of

LAST_STEPS = frozenset({"ship", "prices__join"})


@lru_cache(maxsize=1)
def story_of(case: Case) -> Story:
    """All runs of a case, told to their ends; once for all who ask in turn."""
    # A hook is a tree of its own, which may be pruned before or after the one that it tells of.
    runs = (job for job in case.jobs.values() if job["pipeline"] and job["pipeline"] not in case.apart)
    story = Story.of(case, (job for job in runs if not (case.prunes and job["submitted_by"] == "hook")))
    for job in case.jobs.values():
        _tell(story, job)
    story.finish()
    return story


def _tell(story: Story, job: Row) -> None:
    """What begins with this job."""
    asked_for = {"deliver": deliver, "quote": quote}.get(job["pipeline"])
    if asked_for and job["parent_job_id"] is None:
        asked_for(story, End(job["id"], payload_of(job)), Place(job["pipeline"], job["id"]))
    if job["plugin"] == "order" and "deliver" in story.case.scripts:
        for end in story.handed_on(job):
            deliver(story, end, Place("deliver", job["root_job_id"]))
    notifies = any(role.notifies for role in story.case.roles if role.name == job["plugin"])
    if notifies and job["root_job_id"] == job["id"] and job["status"] in FINAL - {"skipped"} and not story.case.prunes:
        hooks(story, job)


def deliver(story: Story, begun: End, at: Place) -> None:
    story.told["runs"] += 1
    picked = story.step("pick", "pick", begun, at)
    wrapped = picked.then(lambda end: story.join("wrap__join", end, at, _wrap(story, end, at)))
    inspected = wrapped.then(lambda end: _inspect(story, end, at))
    sided = inspected.then(lambda end: story.join("sides__join", end, at, _sides(story, end, at)))
    sided.then(lambda end: story.step("ship", "keep", end, at))


def _wrap(story: Story, end: End, at: Place) -> list[Ends]:
    """A branch for every item, which its first step makes durable."""
    items = enumerate(end.payload["items"])
    return [_wrap_one(story, end, at.inside(index, item, {"part": item})) for index, item in items]


def _wrap_one(story: Story, end: End, at: Place) -> Ends:
    return story.step("cut", "press", end, at).then(lambda end: _bundle(story, end, at))


def _bundle(story: Story, end: End, at: Place) -> Ends:
    paper = story.step("around/paper", "press", end, at)
    ribbon = story.step("around/ribbon", "brittle", end, at)
    return story.join("around/both__join", end, at, [paper, ribbon])


def _inspect(story: Story, end: End, at: Place) -> Ends:
    holds = end.payload["even"]
    passed = story.switch("inspect__switch", end, at, holds)
    return passed.then(lambda end: story.step("inspect", "keep", end, at)) if holds else passed


def _sides(story: Story, end: End, at: Place) -> list[Ends]:
    def glue(end: End) -> Ends:
        return story.step("glue", "brittle", end, at, on_error=lambda failure: story.step("patch", "keep", failure, at))

    return [story.step("invoice", "press", end, at), story.step("print", "twin", end, at).then(glue)]


def quote(story: Story, begun: End, at: Place) -> None:
    story.told["runs"] += 1
    picked = story.step("pick", "pick", begun, at)
    picked.then(lambda end: story.join("prices__join", end, at, _prices(story, end, at)))


def _prices(story: Story, end: End, at: Place) -> list[Ends]:
    items = enumerate(end.payload["items"])
    return [story.step("prices", "press", end, at.inside(index, item, {})) for index, item in items]


def hooks(story: Story, job: Row) -> None:
    """A tree of its own for every pipeline that waits for this kind of end."""
    applies = {
        ("note", "jot"): True,
        ("alarm", "ring"): job["status"] in FAILURES and job["plugin"] == "flaky",
        ("toll", "bell"): job["status"] == "dead",
    }
    known = {"job_id": job["id"], **{name: job[name] for name in ("plugin", "command", "status", "attempt")}}
    for (pipeline, step), does in applies.items():
        if does and pipeline in story.case.scripts:
            story.told["hooks"] += 1
            story.step(step, "keep", End(job["id"], known, is_whole=False), Place(pipeline, None, HOOKS))


# ── what is promised ────────────────────────────────────────────────────────────────────────────────────────────────


def runs_are_whole(case: Case) -> Iterator[str]:
    """I11: every run has exactly the steps that its events and conditions lead to, each with its payload and baggage.

    A run that was acknowledged began with what its caller sent.
    """
    yield from story_of(case).wrong[STEPS]
    for one in case.acknowledged:
        job = case.jobs.get(one.job_id)
        if one.plugin not in case.scripts or job is None:
            continue
        if (job["pipeline"], payload_of(job)) != (one.plugin, {"number": one.number}):
            yield f"{one.job_id} is no run of {one.plugin} with {one.number}: {job['pipeline']}, {payload_of(job)}"


def joins_join(case: Case) -> Iterator[str]:
    """I12: every join is one row, waited for all its branches, and handed on what each came to, in order."""
    yield from story_of(case).wrong[JOINS]


def hooks_fire_once(case: Case) -> Iterator[str]:
    """I13: the end of a root that notifies starts every hook that waits for it, once; nothing else starts one."""
    yield from story_of(case).wrong[HOOKS]


def callers_are_told_the_truth(case: Case) -> Iterator[str]:
    """I14: whoever waited for a run was told its true status, result and tree."""
    for one in case.acknowledged:
        if one.answer is None or one.job_id not in case.jobs:
            continue
        jobs = case.trees[one.job_id]
        failures = [job["status"] for job in jobs if fails_its_tree(job)]
        last = [job for job in jobs if job["step_id"] in LAST_STEPS] or jobs[:1]
        expected = {
            "status": failures[-1] if failures else "succeeded",
            "result": case.answer_of(last[-1]["id"]) or None,
            "tree": [(job["id"], job["status"], job["attempt"]) for job in jobs],
        }
        nodes = [(node["job_id"], node["status"], node["attempt"]) for node in one.answer["tree"]]
        told = {"status": one.answer["status"], "result": one.answer["result"], "tree": nodes}
        for name, truth in expected.items():
            if told[name] != truth:
                yield f"the caller of {one.job_id} was told the {name} {told[name]}, it is {truth}"
