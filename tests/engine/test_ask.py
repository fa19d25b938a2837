"""A plugin process without an event loop keeps the rules of one with it: fed, read, bounded, ended and swept."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ductile.engine.ask import end_strays, run_and_wait
from ductile.engine.launch import SpawnFailed
from ductile.engine.running import Caps, Cause, Finished
from tests.engine.conftest import MakePlugin, request_for
from tests.engine.test_spawn import PATIENCE, Env, MakeScript, animal, require_expected
from tests.zoo.catalogue import ANIMALS, MIB, Animal, Expected, copy_of


def run(argv: list[str], env: Env, request: bytes = b"{}", **more: object) -> Finished | SpawnFailed:
    how = {"timeout": PATIENCE, "grace": 0.2, "caps": Caps(), "limits": None, "stop": threading.Event(), **more}
    try:
        return run_and_wait(argv, request, env=env, **how)  # type: ignore[arg-type]
    finally:
        end_strays()


def finished(argv: list[str], env: Env, request: bytes = b"{}", **more: object) -> Finished:
    ended = run(argv, env, request, **more)
    assert isinstance(ended, Finished), ended
    return ended


@pytest.mark.parametrize("creature", [one for one in ANIMALS if not one.runs_alone], ids=str)
def test_every_animal_ends_the_way_the_catalogue_says(creature: Animal, env: Env, tmp_path: Path) -> None:
    """Whatever a plugin does is a value, and nothing of it is left."""
    folder = copy_of(creature, tmp_path) if creature.on_a_copy else creature.path
    hangs = creature.expected in (Expected.TIMED_OUT, Expected.SUCCESS_OR_TIMED_OUT)
    request = request_for(dict(creature.config), creature.request_bytes)
    timeout = 0.3 if hangs else PATIENCE
    require_expected(creature, run([str(folder / "run")], env, request, timeout=timeout, limits=creature.limits))


def test_a_large_request_is_fed_while_the_answer_is_read(make_script: MakeScript, env: Env) -> None:
    """Neither side waits for the other."""
    request = os.urandom(5 * MIB)
    assert finished(make_script("exec cat"), env, request).stdout == request


def test_a_plugin_inherits_nothing_but_what_it_is_given(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the given environment and a session of its own."""
    monkeypatch.setenv("CANARY", "sings")
    seen = json.loads(json.loads(finished(animal("z61_spy"), env).stdout)["result"])
    assert {name: seen["environ"].get(name) for name in env} == env
    assert set(seen["environ"]) - set(env) <= {"LC_CTYPE"}
    assert seen["session_is_own"]


def test_too_much_output_ends_the_run(make_script: MakeScript, env: Env) -> None:
    """What is kept is what fits."""
    ended = finished(make_script("exec yes"), env, caps=Caps(stdout=1000, stderr=1000))
    assert (ended.cause, len(ended.stdout), ended.stdout_over_cap) == (Cause.OUTPUT_LIMIT, 1000, True)


def test_a_plugin_that_outlives_its_deadline_is_asked_to_stop_and_then_made_to(
    make_plugin: MakePlugin, env: Env
) -> None:
    """SIGTERM, the grace, SIGKILL; what it had said so far is kept."""
    body = """
        signal.signal(signal.SIGTERM, {handler})
        print("half done", file=sys.stderr, flush=True)
        while True: signal.pause()
    """
    obeys = make_plugin(body.format(handler="lambda *_: sys.exit(3)"))
    ignores = make_plugin(body.format(handler="signal.SIG_IGN"))
    polite = finished(obeys.argv, env, timeout=1.0, grace=PATIENCE)
    stubborn = finished(ignores.argv, env, timeout=1.0, grace=0.1)
    assert (polite.timed_out, polite.exit_code, polite.stderr) == (True, 3, b"half done\n")
    assert (stubborn.timed_out, stubborn.signal, stubborn.stderr) == (True, 9, b"half done\n")


def test_runs_go_on_beside_each_other(make_script: MakeScript, env: Env, tmp_path: Path) -> None:
    """Each in its thread, each with the pipes of its own: none ends before all have begun."""
    begun = tmp_path / "begun"
    begun.mkdir()
    meet = f'cd "{begun}"; touch $N; until [ -e 7 ] && set -- * && [ $# = 8 ]; do sleep 0.02; done; echo $N'
    scripts = [make_script(f"N={number}; {meet}") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        said = [ended.stdout for ended in threads.map(lambda argv: finished_of(argv, env), scripts)]
    end_strays()
    assert said == [f"{number}\n".encode() for number in range(8)]


def finished_of(argv: list[str], env: Env) -> Finished:
    stop = threading.Event()
    ended = run_and_wait(argv, b"", timeout=PATIENCE, env=env, grace=0.2, caps=Caps(), limits=None, stop=stop)
    assert isinstance(ended, Finished)
    return ended


def test_a_run_that_nobody_wants_any_more_ends_soon(make_plugin: MakePlugin, env: Env) -> None:
    """Whoever presses Ctrl-C does not wait for the deadline."""
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    ended = finished(make_plugin("signal.pause()").argv, env, stop=stop)
    assert (ended.cause, ended.signal) == (Cause.STOPPED, 15)
