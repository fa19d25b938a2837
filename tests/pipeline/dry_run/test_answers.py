"""Simulated answers for dry runs: accepted formats and errors."""

from typing import Any

import pytest

from ductile.core.errors import UsageInvalid
from ductile.pipeline.dry_run.answers import SILENT, AnswerEvent, PluginAnswer, parse_answers
from tests.pipeline.cases import check_all

VALID_ANSWERS: list[tuple[Any, ...]] = [
    ([], SILENT),
    ({}, SILENT),
    ([{"type": "x"}], PluginAnswer(events=(AnswerEvent("x"),))),
    (
        [{"type": "x", "payload": {"n": 1}, "dedupe_key": "k"}, {"type": "y"}],
        PluginAnswer(events=(AnswerEvent("x", {"n": 1}, "k"), AnswerEvent("y"))),
    ),
    ({"fail": "offline"}, PluginAnswer(error="offline")),
    ({"result": "42"}, PluginAnswer(result="42")),
    ({"result": "42", "events": [{"type": "x"}]}, PluginAnswer(result="42", events=(AnswerEvent("x"),))),
]


def test_valid_answers_are_parsed() -> None:
    """Events, a failure, or a result with events."""

    def check(raw: Any, answer: PluginAnswer) -> None:
        assert parse_answers({"a": raw}, ["a"]) == {"a": answer}

    check_all(VALID_ANSWERS, check)


INVALID_ANSWERS: list[tuple[Any, ...]] = [
    ([], "answers must be an object of step → answer, got a list"),
    ({"setp": []}, "step 'setp' does not exist (did you mean 'step'?)"),
    ({"step": "ok"}, "the answer for step step is not valid"),
    ({"step": None}, "the answer for step step is not valid"),
    ({"step": {"fail": 1}}, "the answer for step step is not valid"),
    ({"step": {"fail": "x", "events": []}}, "the answer for step step is not valid"),
    ({"step": {"result": 1}}, "the answer for step step is not valid"),
    ({"step": {"events": {}}}, "the events of step step must be a list, got an object"),
    ({"step": ["x"]}, "event 0 of step step is not valid"),
    ({"step": [{"type": "x"}, {"payload": {}}]}, "event 1 of step step is not valid"),
    ({"step": [{"type": ""}]}, "event 0 of step step is not valid"),
    ({"step": [{"type": "x", "payload": []}]}, "event 0 of step step is not valid"),
    ({"step": [{"type": "x", "dedupe_key": 1}]}, "event 0 of step step is not valid"),
    ({"step": [{"type": "x", "source": "me"}]}, "event 0 of step step is not valid"),
]


def test_invalid_answers_are_rejected() -> None:
    """The message names the step."""

    def check(raw: Any, message: str) -> None:
        with pytest.raises(UsageInvalid) as error:
            parse_answers(raw, ["step"])

        assert str(error.value) == message

    check_all(INVALID_ANSWERS, check)
