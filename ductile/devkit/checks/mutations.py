"""Requests with one thing changed, for the trials of `plugin check`. Pure; each is a request that a plugin may meet."""

from collections.abc import Mapping
from typing import Any


def with_unknown_fields(request: dict[str, Any]) -> dict[str, Any]:
    news = {"a_field_of_tomorrow": {"nested": [1, None, "x"]}}
    event = {"event": {**request["event"], **news}} if "event" in request else {}
    return {**request, **event, **news}


def with_more_payload(request: dict[str, Any], value: str) -> dict[str, Any]:
    """One more value among what the plugin is told, wherever a plugin may look for it."""

    def more(payload: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**(payload or {}), "a_value_more": value}

    if "event" not in request:
        return {**request, "payload": more(request.get("payload"))}
    event = {**request["event"], "payload": more(request["event"].get("payload"))}
    return {**request, "event": event, "payload": event}


def with_config(request: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**request, "config": {**request["config"], **more}}


def with_another_protocol(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "protocol": 99}


def without_optional_fields(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in ("payload", "event", "context")}


def without_config(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "config": {}}
