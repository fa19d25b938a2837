"""Whoever sends hostile requests to both doors, and what they may hear: a refusal, or nothing and the end.

H1: no request is answered with a fault, none is left without an end, and a connection that is kept is still in step.
"""

import json
import random
from collections import Counter

import trio

from scripts.tortures.hostile import Hostile, make
from scripts.tortures.siege import Findings, Siege
from scripts.tortures.talk import Answer, BadAnswer, Hung, Talker, connect, request

REQUESTS = 10_000
INTRUDERS = 24
DRESS = {
    "content-type": "application/json",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'",
}
REFUSAL = frozenset({"error", "code", "status"})
PROBE = request("GET", "/healthz", headers={"connection": "close"})
ALLOWED = frozenset({200, 202, 204, *range(400, 452), 501})
"""501: of a method that is a name of ours. Everything else is a fault, or should not happen here."""


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Hostile requests, alone, one after the other and several at once."""
    found, heard = Findings(), Counter[int]()
    left = [make(dice) for _ in range(int(REQUESTS * share))]
    sent = len(left)

    async def intrude(number: int) -> None:
        source, port = f"127.0.1.{number % 8 + 1}", siege.ports[number % 2]
        while left:
            some = [left.pop() for _ in range(min(len(left), dice.choice((1, 1, 2, 3, 5))))]
            try:
                answers, unsent = await _visit(port, source, some, at_once=dice.random() < 0.3)
            except (BadAnswer, Hung, OSError) as error:
                found.wrong.append(f"{error!r}: {[one.raw[:300] for one in some]}")
                continue
            left.extend(unsent)
            heard.update(answer.status for answer in answers)
            for answer in answers:
                if why := complaint(answer):
                    found.wrong.append(f"{why}: {answer} to {[one.raw[:300] for one in some]}")

    async with trio.open_nursery() as nursery:
        for number in range(INTRUDERS):
            nursery.start_soon(intrude, number)
    found.numbers = {"requests": sent, "answers": dict(sorted(heard.items()))}
    return found


def complaint(answer: Answer) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if answer.status not in ALLOWED:
        return "a fault"
    if "server" in answer.headers or any(answer.headers.get(name) != value for name, value in DRESS.items()):
        return "headers that say too much or too little"
    if answer.status < 400 or not answer.body:
        return ""
    try:
        told = json.loads(answer.body)
    except ValueError:
        return "a refusal that is no JSON"
    return "" if told.keys() >= REFUSAL and told["status"] == answer.status else "a refusal of another shape"


async def _visit(port: int, source: str, some: list[Hostile], *, at_once: bool) -> tuple[list[Answer], list[Hostile]]:
    """One connection, from its first request to its end: the answers, and what was not sent because it ended."""
    talker = await connect(port, source=source)
    try:
        if at_once and all(one.is_whole and not one.is_head for one in some):
            return await _all_at_once(talker, some), []
        return await _one_by_one(talker, some)
    finally:
        await talker.close()


async def _one_by_one(talker: Talker, some: list[Hostile]) -> tuple[list[Answer], list[Hostile]]:
    answers: list[Answer] = []
    for number, one in enumerate(some, 1):
        await talker.send(one.raw)
        if not one.is_whole:
            await talker.say_no_more()
        answer = await talker.answer(to_head=one.is_head)
        if answer is None and one.is_whole:
            raise BadAnswer("closed without an answer")
        answers += [answer] if answer else []
        if answer is None or answer.closes or not one.is_whole:
            rest = await talker.rest()
            if rest and not one.is_head:  # a HEAD that could not be read is answered with a body
                raise BadAnswer(f"more than one answer: {rest[:200]!r}")
            return answers, some[number:]
    await talker.send(PROBE)
    return answers + _in_step(await talker.answers()), []


async def _all_at_once(talker: Talker, some: list[Hostile]) -> list[Answer]:
    await talker.send(b"".join(one.raw for one in some) + PROBE)
    answers = await talker.answers()
    if len(answers) > len(some) + 1:
        raise BadAnswer(f"{len(answers)} answers to {len(some) + 1} requests")
    if not answers or not answers[-1].closes:
        raise BadAnswer("closed without saying so")
    return answers if len(answers) <= len(some) else answers[:-1] + _in_step(answers[-1:])


def _in_step(probed: list[Answer]) -> list[Answer]:
    if [answer.status for answer in probed] != [200]:
        raise BadAnswer(f"the connection is out of step: {probed}")
    return probed
