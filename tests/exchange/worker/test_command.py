"""The environment and program of the command that handles a message."""

from pathlib import Path

from ductile.engine.process.start import SpawnFailed
from ductile.exchange.worker.command import command_environment, process_spec
from tests.exchange.worker.worker_host import make_claim, make_work


def test_the_command_inherits_the_environment_without_api_keys() -> None:
    inherited = {"PATH": "/bin", "DUCTILE_API_KEY": "secret", "DUCTILE_API_TOKEN": "secret"}
    environment = command_environment(make_claim(delivery=2), inherited)
    assert environment == {
        "PATH": "/bin",
        "DUCTILE_MESSAGE_ID": "message-1",
        "DUCTILE_CONVERSATION_ID": "conversation-1",
        "DUCTILE_TOPIC": "review.request",
        "DUCTILE_CLAIM_ID": "claim-1",
        "DUCTILE_DELIVERY": "2",
    }


def test_meta_values_become_variables_under_both_prefixes() -> None:
    meta = {"model": "gemma3:1b", "max-tokens": 5, "Ünit": {"a": [1]}, "": True}
    environment = command_environment(make_claim(metadata={"meta": meta}), {})
    for prefix in ("DUCTILE_META_", "PLUGBOARD_META_"):
        found = {name.removeprefix(prefix): value for name, value in environment.items() if name.startswith(prefix)}
        assert found == {"MODEL": "gemma3:1b", "MAX_TOKENS": "5", "_NIT": '{"a":[1]}', "": "true"}


def test_meta_cannot_replace_the_ids_or_make_the_command_unstartable() -> None:
    cases = ({"x": "a\0b"}, ["x"], "text", None, 5, {"MESSAGE_ID": "forged"})
    for meta in cases:
        environment = command_environment(make_claim(metadata={"meta": meta}), {})
        assert environment["DUCTILE_MESSAGE_ID"] == "message-1"
        assert not any("\0" in value for value in environment.values())


def test_a_program_is_searched_in_path_and_its_absence_is_a_value(tmp_path: Path) -> None:
    found = process_spec(make_claim(), make_work("sh", "-c", "true"))
    assert not isinstance(found, SpawnFailed)
    assert found.argv[0].endswith("/sh")
    missing = process_spec(make_claim(), make_work("no-such-program"))
    assert missing == SpawnFailed("no-such-program: not found in PATH", 2)
    moved = process_spec(make_claim(), make_work(str(tmp_path / "gone")))
    assert moved == SpawnFailed(f"{tmp_path / 'gone'}: no such file", 2)
