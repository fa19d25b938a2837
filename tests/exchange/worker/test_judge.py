"""How the result of a command becomes the end of its claim."""

from datetime import timedelta
from typing import Any

import pytest

from ductile.core.message import ClaimStatus, checked_follow_up
from ductile.engine.process.run import Cause, Finished
from ductile.engine.process.start import SpawnFailed
from ductile.exchange.worker.judge import backoff, decide
from ductile.exchange.worker.values import ClaimEnd, GiveBack
from tests.exchange.worker.worker_host import make_claim, make_work


def make_result(exit_code: int | None = 0, stdout: bytes = b"", stderr: bytes = b"", **more: Any) -> Finished:
    defaults: dict[str, Any] = {
        "signal": None,
        "cause": Cause.EXITED,
        "stopped": None,
        "stdout_total": len(stdout),
        "stdout_over_cap": False,
        "stderr_total": len(stderr),
        "pipe_left_open": False,
        "swept": 0,
        "lost": False,
        "duration": 0.25,
    }
    return Finished(exit_code=exit_code, stdout=stdout, stderr=stderr, **(defaults | more))


def end_of(result: Finished | SpawnFailed, max_body_size: int = 1 << 20, **work: Any) -> ClaimEnd:
    end = decide(result, make_claim(max_body_size=max_body_size), make_work("review", **work))
    assert isinstance(end, ClaimEnd)
    return end


def test_exit_code_0_completes_the_claim_with_stdout() -> None:
    end = end_of(make_result(0, b"fine\n", b"note"))
    assert (end.status, end.topic, end.body) == (ClaimStatus.COMPLETED, "review.done", "fine\n")
    assert end.metadata == {
        "plugin": "review",
        "stderr": "note",
        "exit_code": 0,
        "status": "completed",
        "duration_ms": 250,
    }


@pytest.mark.parametrize(
    ("result", "body"),
    [
        (make_result(1, b"out", b"err"), "err"),
        (make_result(1, b"out"), "out"),
        (make_result(3), "command exited with code 3"),
        (make_result(78), "command exited with code 78"),
        (make_result(1, b"\xff"), "\ufffd"),
        (make_result(None, signal=9), "command was killed by SIGKILL"),
        (SpawnFailed("nothing: not found in PATH", 2), "command cannot be started: nothing: not found in PATH"),
    ],
)
def test_a_failure_answers_with_stderr_else_stdout_else_the_exit(result: Finished | SpawnFailed, body: str) -> None:
    end = end_of(result)
    assert (end.status, end.topic, end.body) == (ClaimStatus.FAILED, "review.failed", body)
    assert end.metadata["status"] == "failed"


def test_a_time_limit_answers_on_the_timeout_topic() -> None:
    end = end_of(make_result(None, stderr=b"half", signal=15, cause=Cause.TIMED_OUT), timeout_seconds=2.5)
    assert (end.status, end.topic) == (ClaimStatus.TIMED_OUT, "review.request.timed_out")
    assert end.body == "command timed out after 2.5 seconds\nhalf"
    assert "exit_code" not in end.metadata


def test_output_over_the_limit_fails_and_names_the_limit() -> None:
    end = end_of(make_result(None, b"x" * 10, cause=Cause.OUTPUT_LIMIT, stdout_over_cap=True), max_body_size=1024)
    assert (end.status, end.metadata["code"]) == (ClaimStatus.FAILED, "output_too_large")
    assert end.body == "output too large: stdout exceeds 1.0KB"


def test_output_that_is_not_utf8_fails_unless_it_is_replaced() -> None:
    refused = end_of(make_result(0, b"caf\xe9"))
    assert (refused.status, refused.metadata["code"]) == (ClaimStatus.FAILED, "output_not_text")
    assert end_of(make_result(0, b"caf\xe9"), replace_invalid=True).body == "caf\ufffd"


def test_exit_code_75_gives_the_message_back_with_a_growing_delay() -> None:
    delays = []
    for delivery in (1, 2, 3, 9, 10, 1_000_000):
        given = decide(make_result(75, b"later"), make_claim(delivery=delivery), make_work("review"))
        assert isinstance(given, GiveBack)
        assert not given.uncounted
        delays.append(given.delay)
    assert delays == [timedelta(seconds=seconds) for seconds in (1, 2, 4, 256, 300, 300)]
    assert backoff(1) == timedelta(seconds=1)


@pytest.mark.parametrize("noise", [b"\x01" * 65_536, b"\xff" * 65_536, "€".encode() * 20_000, b"\\" * 65_536])
def test_every_follow_up_passes_the_checks_of_a_message(noise: bytes) -> None:
    for exit_code in (0, 1):
        end = end_of(make_result(exit_code, b"", noise), max_body_size=4096)
        checked_follow_up(topic=end.topic, body=end.body, metadata=dict(end.metadata), max_body_size=4096)
