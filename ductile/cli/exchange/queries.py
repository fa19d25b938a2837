"""What commands read: from the ledger, also while no service runs, or from the service of `--api-url`."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from ductile.cli.base.options import selected_config

if TYPE_CHECKING:
    from ductile.ledger.storage.db import Db

PAGE_SIZE = 500
Flags = Mapping[str, Any]


def message_page(
    flags: Flags,
    *,
    topic: str | None = None,
    conversation: str | None = None,
    parent: str | None = None,
    state: str | None = None,
    after: int = 0,
    limit: int = PAGE_SIZE,
    wait: str | None = None,
) -> dict[str, Any]:
    """Return a page of messages. With `wait`, the service waits for the first one."""
    if flags["api_url"] or wait:
        given = {
            "topic": topic,
            "conversation": conversation,
            "parent": parent,
            "state": state,
            "wait": wait,
            "after": after or None,
            "limit": limit,
        }
        return _get("/exchange/messages", given, flags)
    from ductile.core.message import MessageState
    from ductile.ledger.exchange.message_list import MessageFilter
    from ductile.web.views.exchange_lists import message_list_view

    wanted = MessageFilter(
        topics=None if topic is None else (_checked_pattern(topic),),
        conversation_id=conversation,
        parent_id=parent,
        state=None if state is None else MessageState(state),
    )
    with _reader(flags) as (db, _):
        return dict(message_list_view(db, wanted, after=after, limit=limit))


def message_details(message_id: str, flags: Flags) -> dict[str, Any]:
    """Return everything about a message. Raises MessageUnknown."""
    if flags["api_url"]:
        return _get(f"/exchange/messages/{quote(message_id, safe='')}", {}, flags)
    from ductile.web.views.exchange_lists import message_details_view

    with _reader(flags) as (db, _):
        return dict(message_details_view(db, message_id))


def message_why(message_id: str, flags: Flags) -> dict[str, Any]:
    """Return why a message is or is not handled. Raises MessageUnknown.

    A running service is asked: only it knows which workers wait.
    """
    from ductile.cli.base.connect import running_client

    path = f"/exchange/messages/{quote(message_id, safe='')}/why"
    if flags["api_url"]:
        return _get(path, {}, flags)
    if service := running_client(config_of(flags)):
        return service.request("GET", path)
    from ductile.explain import message

    with _reader(flags) as (db, ledger):
        return dict(message.message_why(db, ledger, message_id))


def conversation(
    conversation_id: str, topics: Mapping[str, str | None], flags: Flags, *, wait: str | None = None
) -> dict[str, Any]:
    """Return the state and the last reply of a conversation. `topics`: success, failure and timeout, each optional."""
    if flags["api_url"] or wait:
        arguments = {f"{name}_topic": value for name, value in topics.items()}
        return _get(f"/exchange/conversations/{quote(conversation_id, safe='')}", {**arguments, "wait": wait}, flags)
    from ductile.core.message import checked_topic
    from ductile.web.views.exchange_lists import conversation_view, reply_topics

    given = {name: checked_topic(value) for name, value in topics.items() if value is not None}
    with _reader(flags) as (db, _):
        return dict(conversation_view(db, conversation_id, reply_topics(db, conversation_id, **given)))


def topic_list(flags: Flags) -> dict[str, Any]:
    """Return the topics with what waits on them. A running service adds its waiting workers."""
    from ductile.cli.base.connect import running_client

    if flags["api_url"]:
        return _get("/exchange/topics", {}, flags)
    if service := running_client(config_of(flags)):
        return service.request("GET", "/exchange/topics")
    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load
    from ductile.ledger.exchange.topics import MAX_TOPICS
    from ductile.web.views.exchange_lists import topic_list_view

    rules = load(find_config(config_of(flags), os.environ).path).settings.exchange.rules_of
    with _reader(flags) as (db, _):
        return dict(topic_list_view(db, rules, limit=MAX_TOPICS))


def config_of(flags: Flags) -> Path | None:
    """Return the configuration that the flags select."""
    return selected_config(flags["config_path"], flags["config_dir"])


def _get(path: str, arguments: Mapping[str, Any], flags: Flags) -> dict[str, Any]:
    from ductile.cli.base.connect import client_for

    query = urlencode({name: value for name, value in arguments.items() if value is not None})
    return client_for(flags).request("GET", f"{path}?{query}" if query else path)


@contextmanager
def _reader(flags: Flags) -> "Iterator[tuple[Db, Path]]":
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.storage.open_file import open_reader

    ledger = ledger_for(flags)
    with open_reader(ledger) as db:
        yield db, ledger


def _checked_pattern(topic: str) -> str:
    from ductile.core.message import PATTERN_HELP, TopicInvalid, is_topic_pattern

    if not is_topic_pattern(topic):
        raise TopicInvalid(f"--topic {topic[:80]!r}: expected {PATTERN_HELP}")
    return topic
