"""drifted_plugins: plugins whose jobs wait because their files differ from the sealed ones.

The service deletes the rows at its start, which checks all files. The journal also has drifts that do not block.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal


@frozen(kw_only=True)
class DriftedPlugin:
    """A plugin that is not started: the reason code and the files that differ."""

    plugin: str
    code: str
    files: Sequence[str]
    fingerprint: str | None
    detected_at: datetime

    @property
    def data(self) -> Mapping[str, Any]:
        """The data of the reason code."""
        return {"plugin": self.plugin, "files": list(self.files), "detected_at": to_text(self.detected_at)}


ALL = "SELECT plugin, code, files, fingerprint, detected_at FROM drifted_plugins ORDER BY plugin"


def all_drifted(db: Db) -> dict[str, DriftedPlugin]:
    """Return the plugins that are not started because of their files, by name."""
    return {
        plugin: DriftedPlugin(
            plugin=plugin,
            code=code,
            files=strict_json.loads(files),
            fingerprint=fingerprint,
            detected_at=from_text(detected_at),
        )
        for plugin, code, files, fingerprint, detected_at in db.execute(ALL)
    }


PUT = """
    INSERT INTO drifted_plugins (plugin, code, files, fingerprint, detected_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (plugin) DO UPDATE
       SET code = excluded.code, files = excluded.files, fingerprint = excluded.fingerprint,
           detected_at = excluded.detected_at
"""


def put(db: Db, drifted: DriftedPlugin, *, blocks: bool) -> None:
    """Journal that the files of a plugin differ. With `blocks`, also store it as the reason why its jobs wait."""
    files, now = strict_json.dumps(list(drifted.files)), to_text(drifted.detected_at)
    if blocks:
        db.execute(PUT, (drifted.plugin, drifted.code, files, drifted.fingerprint, now))
    data = {"reason": drifted.code, "files": list(drifted.files), "fingerprint": drifted.fingerprint, "blocks": blocks}
    journal.append(db, "plugin.drifted", now=now, plugin=drifted.plugin, data=data)


DELETE = "DELETE FROM drifted_plugins WHERE plugin = ?"


def delete(db: Db, plugin: str, *, now: datetime) -> None:
    """Journal that the files of a plugin are the loaded ones again."""
    db.execute(DELETE, (plugin,))
    journal.append(db, "plugin.restored", now=now, plugin=plugin)


DELETE_ALL = "DELETE FROM drifted_plugins"


def delete_all(db: Db) -> None:
    """Forget what an earlier run of the service has found."""
    db.execute(DELETE_ALL)
