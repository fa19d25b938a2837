"""The notification of a reply. Every end of a request is a reply."""

from typing import Any

from ductile.cli.exchange.notify import make_notice


def tracked(state: str, body: str | None, *, success: str = "review.done") -> dict[str, Any]:
    reply = None if body is None else {"body": body}
    topics = {"success_topic": success, "failure_topic": "review.failed"}
    return {"conversation_id": "c", "state": state, "reply": reply, **topics}


def test_the_title_names_a_failure() -> None:
    titles = {state: make_notice(tracked(state, "x"))["title"] for state in ("success", "failure", "timed_out", "dead")}
    assert titles == {"success": "Reply ready"} | dict.fromkeys(
        ("failure", "timed_out", "dead"), "Reply ready (failed)"
    )
    assert make_notice(tracked("success", "x", success="ollama.done"))["title"] == "Ollama reply ready"


def test_the_preview_is_the_first_line_cut_at_whole_characters() -> None:
    previews = {
        body: make_notice(tracked("success", body))["preview"] for body in ("é" * 100, "\n one \ntwo", "", None)
    }
    assert previews == {"é" * 100: "é" * 80, "\n one \ntwo": "one ", "": "", None: ""}
