"""`ductile exchange …` with a service: Plugboard's commands and outputs, work by hand, operators, bad input."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.exchange_commands import exchange, exchange_json, publish, started
from tests.e2e.service import Home, Service, Start, poll_until

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
WORKER = ("run", "--topic", "review.request", "--once")


@pytest.fixture(autouse=True)
def service(start: Start) -> Service:
    return start()


# ── Plugboard's commands ──────────────────────────────────────────────────────────────────────────────────────────────


def test_publish_prints_the_id_to_stdout_and_the_identifiers_to_stderr(home: Home) -> None:
    done = exchange(home, "publish", "review.request", "Please review")
    message_id = done.stdout.removesuffix("\n")
    about = f"message_id={message_id} conversation_id={message_id} topic=review.request"
    assert re.fullmatch(rf"\[{TIME}\] published {re.escape(about)}\n", done.stderr)
    done = exchange(home, "publish", "review.request", "again", "--json", "--parent-id", message_id)
    assert json.loads(done.stderr) == {
        "event": "published",
        "message_id": done.stdout.strip(),
        "conversation_id": message_id,
        "topic": "review.request",
    }


def test_a_published_message_is_read_as_time_topic_and_body(home: Home) -> None:
    conversation = publish(home, "review.request", "one\ttwo\nthree\\four\x1b[31m")
    publish(home, "other.topic", "elsewhere")
    for flags in (("--topic", "review.*"), ("--conversation", conversation), ("--conversation-id", conversation)):
        line = exchange(home, "read", *flags).stdout
        assert re.fullmatch(rf"{TIME}\treview\.request\tone\\ttwo\\nthree\\\\four\\x1b\[31m\n", line)
    assert [line.split("\t")[1] for line in exchange(home, "read").stdout.splitlines()] == [
        "review.request",
        "other.topic",
    ]


def test_a_reader_continues_after_its_position_and_waits_for_the_next_message(home: Home) -> None:
    publish(home, "review.done", "first")
    page = exchange_json(home, "read", "--topic", "review.done")
    assert [message["body"] for message in page["messages"]] == ["first"]
    with started(home, "read", "--topic", "review.done", "--after", str(page["next"]), "--wait", "30s") as reader:
        publish(home, "review.done", "second")
        stdout, _ = reader.communicate(timeout=30)
    assert stdout.endswith("\treview.done\tsecond\n")


def test_run_once_handles_one_message_and_publishes_stdout(home: Home) -> None:
    first, _ = publish(home, "review.request", "résumé"), publish(home, "review.request", "left")
    assert exchange(home, *WORKER, "--", "sh", "-c", "cat; printf '!'").exit_code == 0
    (reply,) = exchange_json(home, "read", "--topic", "review.done")["messages"]
    assert (reply["body"], reply["parent_id"], reply["conversation_id"]) == ("résumé!", first, first)
    assert (reply["producer"], reply["metadata"]["status"]) == ("review.request-worker", "completed")
    assert [one["state"] for one in exchange_json(home, "read", "--topic", "review.request")["messages"]] == [
        "completed",
        "ready",
    ]


def test_a_worker_gets_the_ids_and_meta_of_the_message_but_no_api_key(home: Home) -> None:
    message_id = publish(home, "review.request", "", "--meta", "model=small", "--meta", "max-tokens=5")
    secrets = {"DUCTILE_API_KEY": "a-secret", "DUCTILE_API_TOKEN": "another-secret"}
    assert exchange(home, *WORKER, "--", "env", environ=secrets).exit_code == 0
    (reply,) = exchange_json(home, "read", "--topic", "review.done")["messages"]
    environment = dict(line.split("=", 1) for line in reply["body"].splitlines() if "=" in line)
    assert environment["DUCTILE_MESSAGE_ID"] == environment["DUCTILE_CONVERSATION_ID"] == message_id
    assert (environment["DUCTILE_TOPIC"], environment["DUCTILE_DELIVERY"]) == ("review.request", "1")
    assert environment["PLUGBOARD_META_MODEL"] == environment["DUCTILE_META_MODEL"] == "small"
    assert environment["PLUGBOARD_META_MAX_TOKENS"] == "5"
    assert len(environment["DUCTILE_CLAIM_ID"]) == 36
    assert not {"a-secret", "another-secret"} & set(environment.values())


def test_commands_written_for_plugboard_run_unchanged(home: Home) -> None:
    options = (
        "--success-topic",
        "a.ok",
        "--failure-topic",
        "a.bad",
        "--timeout-seconds",
        "20",
        "--lease-seconds",
        "60",
    )
    more = ("--runner-name", "mine", "--wait-timeout-ms", "250", "--idle-sleep-ms", "250", "--once")
    metadata = ("--metadata-json", '{"x": 1}', "--meta", "k=true", "--producer", "me")
    conversation = publish(home, "a.ask", "question", *metadata)
    assert exchange(home, "run", "--topic", "a.ask", *options, *more, "--", "cat").exit_code == 0
    ask = ("--conversation-id", conversation, "--success-topic", "a.ok", "--failure-topic", "a.bad")
    done = exchange(home, "check", *ask)
    (reply,) = exchange_json(home, "read", "--topic", "a.ok")["messages"]
    about = f"conversation_id={conversation} message_id={reply['message_id']} topic=a.ok"
    assert done.exit_code == 0
    assert re.fullmatch(rf"\[{TIME}\] success {re.escape(about)}\nquestion\n", done.stdout)
    assert exchange_json(home, "check", *ask) == {
        "state": "success",
        "conversation_id": conversation,
        "message_id": reply["message_id"],
        "topic": "a.ok",
        "body": "question",
    }
    lines = exchange(home, "inspect", "--message", conversation).stdout.splitlines()
    assert lines[0].startswith(f"message {conversation} topic=a.ask conversation={conversation} parent=- producer=me")
    assert re.fullmatch(f"created_at={TIME}", lines[1])
    assert lines[2:4] == ["body=question", 'metadata_json={"x": 1, "meta": {"k": true}}']
    claim = f"claim .{{36}} message_id={conversation} state=terminal status=completed worker_group=mine"
    assert re.match(rf"{claim} worker_instance_id=\S+ claimed_at={TIME} lease_until=\S+ completed_at={TIME}", lines[4])


@pytest.mark.parametrize(
    ("command", "state", "topic", "body"),
    [
        (("sh", "-c", "echo no >&2; exit 3"), "failure", "review.failed", "no"),
        (("sleep", "60"), "timed_out", "review.request.timed_out", "command timed out after 0.5 seconds"),
        (("no-such", "x"), "failure", "review.failed", "command cannot be started: no-such: not found in PATH"),
    ],
    ids=["failure", "timeout", "cannot start"],
)
def test_request_and_check_take_every_end_for_an_answer(
    home: Home, command: tuple[str, ...], state: str, topic: str, body: str
) -> None:
    with started(home, *WORKER, "--timeout", "500ms", "--", *command):
        done = exchange(home, "request", "review.request", "--timeout", "25s", stdin="question")
    assert (done.exit_code, done.stdout) == (1, f"{body}\n")
    conversation = re.findall(r"conversation_id=(\S+)", done.stderr)[0]
    checked = exchange_json(home, "check", "--conversation-id", conversation, exit_code=1)
    assert (checked["state"], checked["topic"]) == (state, topic)


def test_request_returns_the_reply_of_its_own_conversation(home: Home) -> None:
    publish(home, "review.done", "a reply to something else")
    with started(home, "run", "--topic", "review.request", "--", "tr", "a-z", "A-Z"):
        done = exchange(home, "request", "review.request", "--body", "mine", "--json")
        assert (done.exit_code, done.stdout) == (0, "MINE\n")
        assert json.loads(done.stderr)["event"] == "published"


def test_a_request_without_an_answer_exits_with_75_and_names_the_conversation(home: Home) -> None:
    done = exchange(home, "request", "review.request", "--body", "hello", "--timeout", "100ms")
    conversation = re.findall(r"published message_id=\S+ conversation_id=(\S+)", done.stderr)[0]
    assert (done.exit_code, done.stdout) == (75, "")
    assert f"no reply within 100ms: conversation_id={conversation}" in done.stderr
    pending = exchange_json(home, "check", "--conversation-id", conversation)
    assert pending == {"state": "pending", "conversation_id": conversation}
    assert exchange(home, "check", "--conversation-id", conversation, "--exit-code").exit_code == 75


def test_notify_reports_each_reply_to_a_published_request_once(home: Home) -> None:
    conversation = publish(home, "review.request", "please")
    stderr_only = {"PLUGBOARD_NOTIFY_BACKEND": "stderr"}
    assert exchange(home, "notify", "--once", environ=stderr_only).stdout == "no new replies\n"
    exchange(home, *WORKER, "--", "sh", "-c", f"printf '%s' '{'é' * 100}'")
    done = exchange(home, "notify", "--once", "--poll-seconds", "2", environ=stderr_only)
    check = f"ductile exchange check --conversation-id {conversation}"
    assert done.stderr.splitlines() == [
        "Reply ready",
        f"conversation_id={conversation}",
        "é" * 80,
        f"{check} --success-topic review.done --failure-topic review.failed",
    ]
    assert exchange(home, "notify", "--once", environ=stderr_only).stderr == ""


def test_parallel_publishes_are_all_tracked(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        published = set(pool.map(lambda number: publish(home, "review.request", str(number)), range(8)))
    assert {
        row["conversation_id"] for row in home.rows("SELECT conversation_id FROM tracked_conversations")
    } == published


# ── work by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_claimed_extended_and_completed_by_hand(home: Home) -> None:
    message_id = publish(home, "review.request", "please")
    (claim,) = exchange_json(home, "claim", "review.request", "--lease", "2m")["claims"]
    assert (claim["message_id"], claim["message"]["body"]) == (message_id, "please")
    assert exchange_json(home, "extend", claim["claim_id"], "--lease", "10m")["lease_seconds"] > 500
    ended = exchange_json(home, "complete", claim["claim_id"], "looks good")
    assert (ended["state"], ended["follow_up"]["topic"]) == ("completed", "review.done")
    late = exchange_json(home, "fail", claim["claim_id"], "no", exit_code=1)
    assert (late["code"], late["context"]["claim_status"]) == ("claim_lost", "completed")


def test_nothing_to_claim_exits_with_75_and_a_waiting_claim_gets_the_next_message(home: Home) -> None:
    assert exchange_json(home, "claim", "review.request", exit_code=75)["claims"] == []
    with started(home, "claim", "review.request", "--wait", "30s") as waiting:
        publish(home, "review.request", "please")
        stdout, _ = waiting.communicate(timeout=30)
    assert stdout.startswith("claim ")
    assert stdout.endswith("\nplease\n")


def test_a_message_is_handed_over_in_its_conversation(home: Home) -> None:
    conversation = publish(home, "review.request", "please")
    (claim,) = exchange_json(home, "claim", "review.request")["claims"]
    ended = exchange_json(home, "release", claim["claim_id"], "--to", "security.request")
    assert (ended["state"], ended["follow_up"]["topic"]) == ("completed", "security.request")
    (claim,) = exchange_json(home, "claim", "security.request")["claims"]
    exchange_json(home, "complete", claim["claim_id"], "safe", "--topic", "review.done")
    assert exchange_json(home, "check", "--conversation-id", conversation)["body"] == "safe"


def test_a_reply_is_published_in_the_conversation_of_the_message(home: Home) -> None:
    request = publish(home, "approval.request", "may I?")
    reply = exchange_json(home, "reply", request, "yes")
    assert (reply["topic"], reply["conversation_id"]) == ("approval.done", request)
    assert exchange_json(home, "check", "--conversation-id", request)["body"] == "yes"


# ── operators ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_operators_pause_requeue_and_purge(home: Home) -> None:
    message_id = publish(home, "review.request", "please")
    assert exchange(home, "pause", "review.request", "--reason", "test").stdout == "review.request is paused\n"
    assert exchange_json(home, "claim", "review.request", exit_code=75)["claims"] == []
    (topic,) = exchange_json(home, "topics")["topics"]
    assert (topic["paused"], topic["pause_reason"], topic["ready"]) == (True, "test", 1)
    assert "paused" in exchange(home, "why", message_id).stdout
    assert exchange(home, "resume", "review.request").stdout == "review.request is resumed\n"
    (claim,) = exchange_json(home, "claim", "review.request")["claims"]
    exchange_json(home, "fail", claim["claim_id"])
    assert exchange(home, "requeue", message_id).stdout == f"message {message_id} is ready\n"
    assert (
        exchange(home, "purge", "review.request", "--dry-run").stdout == "1 message of review.request would be purged\n"
    )
    assert exchange(home, "purge", "review.request").stdout == "1 message of review.request purged\n"
    assert exchange_json(home, "claim", "review.request", exit_code=75)["claims"] == []


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_INPUT = [
    (("publish", "Review Request", "x"), "topic_invalid"),
    (("publish", "", "x"), "topic_invalid"),
    (("publish", "a.b"), "body_missing"),
    (("publish", "a.b", "x", "--meta", "novalue"), "metadata_invalid"),
    (("publish", "a.b", "x", "--meta", "=value"), "metadata_invalid"),
    (("publish", "a.b", "x", "--metadata-json", "[1]"), "metadata_invalid"),
    (("publish", "a.b", "x", "--metadata-json", "{"), "metadata_invalid"),
    (("publish", "a.b", "x", "--metadata-json", '{"meta": 1}', "--meta", "a=b"), "metadata_invalid"),
    (("publish", "a.b", "x", "--parent-id", "nothing"), "parent_unknown"),
    (("publish", "a.b", "x", "--delay", "-5s"), "delay_invalid"),
    (("publish", "a.b", "x", "--delay", "soon"), "delay_invalid"),
    (("publish", "a.b", "x", "--producer", "p" * 201), "message_invalid"),
    (("read", "--topic", "a.b", "--conversation", "c"), "usage"),
    (("inspect", "--message", "a", "--conversation", "c"), "usage"),
    (("inspect", "--message", "nothing"), "message_unknown"),
    (("check", "--conversation-id", "nothing"), "message_unknown"),
    (("claim", "a.b", "--lease", "0s"), "lease_invalid"),
    (("claim", "a.b", "--lease", "13h"), "lease_invalid"),
    (("claim", "A"), "topic_invalid"),
    (("complete", "foreign", "done"), "claim_unknown"),
    (("release", "foreign", "--to", "a.b", "--delay", "5s"), "usage"),
    (("run", "--topic", "a.request"), "usage"),
    (("run", "--topic", "a.b", "--", "cat"), "usage"),
    (("run", "--topic", "A.request", "--", "cat"), "topic_invalid"),
    (("run", "--topic", "a.request", "--lease", "0s", "--", "cat"), "lease_invalid"),
    (("run", "--topic", "a.request", "--lease-seconds", "0", "--", "cat"), "lease_invalid"),
    (("run", "--topic", "a.request", "--success-topic", "B", "--", "cat"), "topic_invalid"),
    (("request", "a.b", "--body", "x"), "topic_invalid"),
]


def test_bad_input_is_refused_with_code_and_hint_and_nothing_is_stored(home: Home, tmp_path: Path) -> None:
    large, binary = tmp_path / "large", tmp_path / "binary"
    large.write_bytes(b"x" * ((1 << 20) + 1))
    binary.write_bytes(b"caf\xe9")
    cases = [*BAD_INPUT, (("publish", "a.b", "--body-file", str(large)), "body_too_large")]
    cases += [(("publish", "a.b", "--body-file", str(binary)), "body_not_text")]
    wrong = []
    for args, code in cases:
        end = args.index("--") if "--" in args else len(args)
        done = exchange(home, *args[:end], "--json", *args[end:])
        answer = json.loads(done.stdout or "{}")
        if done.exit_code not in (1, 2) or answer.get("code") != code or not answer.get("hint"):
            wrong.append((args, done))
    assert wrong == []
    assert home.rows("SELECT id FROM messages") == []


def test_a_body_of_stdin_must_be_text(home: Home) -> None:
    done = exchange(home, "publish", "a.b", "-", "--json", stdin=b"\xff")
    assert (done.exit_code, json.loads(done.stdout)["code"]) == (2, "body_not_text")
    assert exchange(home, "publish", "a.b", "-", stdin="from stdin").exit_code == 0
    assert exchange_json(home, "read")["messages"][0]["body"] == "from stdin"


def test_a_message_stays_ready_while_no_worker_can_handle_it(home: Home) -> None:
    """The host that cannot start its command says so in the answer, and the claim has ended."""
    message_id = publish(home, "review.request", "please")
    assert exchange(home, *WORKER, "--", "/no/such/program").exit_code == 0
    poll_until(lambda: exchange_json(home, "why", message_id)["state"] == "failed")
    assert home.rows("SELECT status FROM claims") == [{"status": "failed"}]
