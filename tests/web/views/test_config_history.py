"""The configurations that a service ran under: who put each into use, and what differs."""

import json
from typing import Any

from ductile.explain.changes import compare_configurations
from ductile.ledger.admin import service_log
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot
from ductile.web.views.config_history import history_view
from tests.ledger.conftest import LedgerDriver, db, ledger, path

__all__ = ["db", "ledger", "path"]


def snapshot(
    ledger: LedgerDriver, name: str, config: dict[str, Any], secret: str, plugins: dict[str, Any] | None = None
) -> StoredSnapshot:
    uses = [{"purpose": "tokens.github.key", "source": "tokens.yaml", "present": True, "fingerprint": secret}]
    return StoredSnapshot(
        id=f"cfg_{name}",
        config_hash=name,
        loaded_at=ledger.now,
        reason="reload",
        sanitized_config=json.dumps(config),
        plugin_fingerprints=json.dumps(plugins or {}),
        secret_fingerprints=json.dumps(uses),
    )


def test_a_secret_with_another_value_is_a_difference(ledger: LedgerDriver) -> None:
    old, new = snapshot(ledger, "old", {}, "blake3:a"), snapshot(ledger, "new", {}, "blake3:b")

    assert compare_configurations(old, new)["secrets"] == ["tokens.github.key"]
    assert compare_configurations(old, old)["secrets"] == []


def test_the_history_has_the_actor_and_the_changes_of_each_configuration(ledger: LedgerDriver) -> None:
    """The journal has a start a moment after its configuration was loaded."""
    with transaction(ledger.db):
        snapshots.put(ledger.db, snapshot(ledger, "first", {"service": {"max_workers": 1}}, "blake3:a"))
        ledger.advance(milliseconds=5)
        service_log.journal_start(
            ledger.db, run_id="r", version="0", pid=1, config_hash="first", actor="uid:1", now=ledger.now
        )
        for name, secret, actor in (("second", "blake3:b", "token:ci"), ("third", "blake3:b", "uid:2")):
            ledger.advance(seconds=60)
            reloaded = snapshot(ledger, name, {"service": {"max_workers": 2}}, secret)
            service_log.journal_reload(ledger.db, reloaded, actor=actor)
            snapshots.put(ledger.db, reloaded)

    listed = history_view(ledger.db, cursor=None, limit=10)["snapshots"]
    assert [one["actor"] for one in listed] == ["uid:2", "token:ci", "uid:1"]
    nothing: dict[str, list[str]] = {"config": [], "secrets": [], "plugins": []}
    both = {"config": ["service.max_workers"], "secrets": ["tokens.github.key"], "plugins": []}
    assert [one["changes"] for one in listed] == [nothing, both, None]
    page = history_view(ledger.db, cursor="cfg_third", limit=1)["snapshots"]
    assert [(one["snapshot_id"], one["actor"]) for one in page] == [("cfg_second", "token:ci")]


def test_a_plugin_that_was_added_or_removed_has_no_changed_files(ledger: LedgerDriver) -> None:
    """Its section of the configuration tells that."""
    before, after = (
        {"same": {"entrypoint_hash": "a"}, "gone": {"entrypoint_hash": "b"}},
        {"same": {"entrypoint_hash": "c"}},
    )
    with transaction(ledger.db):
        for name, plugins in (("first", before), ("second", after)):
            snapshots.put(ledger.db, snapshot(ledger, name, {}, "blake3:a", plugins))
            ledger.advance(seconds=1)

    newest = history_view(ledger.db, cursor=None, limit=1)["snapshots"][0]
    assert newest["changes"] == {"config": [], "secrets": [], "plugins": ["same"]}
