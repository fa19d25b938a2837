"""Answers for a dry run: which forms are understood, and what is said about the others."""

from typing import Any

import pytest

from ductile.core.errors import UsageInvalid
from ductile.pipeline.dry_run.answers import SILENT, Emitted, PluginAnswer, read_answers


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ([], SILENT),
        ({}, SILENT),
        ([{"type": "x"}], PluginAnswer(events=(Emitted("x"),))),
        (
            [{"type": "x", "payload": {"n": 1}, "dedupe_key": "k"}, {"type": "y"}],
            PluginAnswer(events=(Emitted("x", {"n": 1}, "k"), Emitted("y"))),
        ),
        ({"fail": "offline"}, PluginAnswer(error="offline")),
        ({"result": "42"}, PluginAnswer(result="42")),
        ({"result": "42", "events": [{"type": "x"}]}, PluginAnswer(result="42", events=(Emitted("x"),))),
    ],
)
def test_an_answer_is_read(given: Any, answer: PluginAnswer) -> None:
    """Events, a failure, or a result with events."""
    assert read_answers({"a": given}, ["a"]) == {"a": answer}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "answers are an object of step → answer, not a list"),
        ({"setp": []}, "there is no step 'setp' to answer for (did you mean 'step'?)"),
        ({"step": "ok"}, "the answer of step cannot be read"),
        ({"step": None}, "the answer of step cannot be read"),
        ({"step": {"fail": 1}}, "the answer of step cannot be read"),
        ({"step": {"fail": "x", "events": []}}, "the answer of step cannot be read"),
        ({"step": {"result": 1}}, "the answer of step cannot be read"),
        ({"step": {"events": {}}}, "the events of step are a list, not an object"),
        ({"step": ["x"]}, "event 0 of step cannot be read"),
        ({"step": [{"type": "x"}, {"payload": {}}]}, "event 1 of step cannot be read"),
        ({"step": [{"type": ""}]}, "event 0 of step cannot be read"),
        ({"step": [{"type": "x", "payload": []}]}, "event 0 of step cannot be read"),
        ({"step": [{"type": "x", "dedupe_key": 1}]}, "event 0 of step cannot be read"),
        ({"step": [{"type": "x", "source": "me"}]}, "event 0 of step cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Any, says: str) -> None:
    """The message names the step, and the hint shows how to write it."""
    with pytest.raises(UsageInvalid) as refused:
        read_answers(given, ["step"])

    assert str(refused.value) == says
