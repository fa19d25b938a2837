"""Checks of the running service: its configuration, ledger, writer and plugins. Each also reports what passed.

Imports inside functions are slow ones that a service has loaded already. The CLI imports this module with the registry.
"""

from collections.abc import Iterator

from ductile.config.load.load import load
from ductile.core.errors import DuctileError
from ductile.ledger.storage.lock_holder import find_lock_holder
from ductile.ledger.storage.open_file import open_reader_beside_writer
from ductile.ops.checks.check import Finding, Installation, Severity
from ductile.plugin.checked_files import FileChecker


def check_config_in_use(installation: Installation) -> Iterator[Finding]:
    """Compare the configuration in use with the one on disk."""
    current, severity, detail = installation.service.snapshot.config, Severity.OK, ""
    try:
        if load(current.root).digest != current.digest:
            severity = Severity.WARNING
            detail = "the configuration on disk differs from the one in use; reload to apply it"
    except DuctileError as error:
        severity, detail = Severity.PROBLEM, current.mask(f"a reload would fail: {str(error).splitlines()[0]}")
    yield Finding("config", severity, detail)


def check_queue_readable(installation: Installation) -> Iterator[Finding]:
    from ductile.ledger.reports import queue_status

    try:
        with open_reader_beside_writer(installation.service.ledger) as db:
            detail = f"{queue_status.depth(db)} jobs queued or running"
    except DuctileError as error:
        yield Finding("ledger", Severity.PROBLEM, str(error))
    else:
        yield Finding("ledger", Severity.OK, detail)


def check_writer(installation: Installation) -> Iterator[Finding]:
    from ductile.core.instance.systemd import MAX_STUCK_SECONDS

    seconds = installation.service.stuck_seconds
    severity = Severity.OK if seconds < MAX_STUCK_SECONDS else Severity.PROBLEM
    holder = find_lock_holder(installation.service.ledger) if seconds >= 1 else None
    detail = f"blocked for {seconds:.1f} s" + (f" by {holder}" if holder else "")
    yield Finding("writer", severity, detail if seconds >= 1 else "")


def check_plugins_in_use(installation: Installation) -> Iterator[Finding]:
    """Check the files of each plugin and its `init`, then report the plugins that cannot be started."""
    service = installation.service
    for name, configured in sorted(service.snapshot.plugins.items()):
        found, files = configured.plugin.recheck(), FileChecker().check(configured.plugin)
        refused = [str(finding) for finding in found if finding.is_refusal]
        if files.has_drifted and service.snapshot.config.settings.service.strict_mode:
            refused.append(f"its jobs wait: {files.message}")
        if name in service.unhealthy or refused:
            yield _plugin(name, Severity.PROBLEM, service.unhealthy.get(name) or "; ".join(refused))
        elif found or files.has_drifted:
            yield _plugin(
                name, Severity.WARNING, "; ".join([*map(str, found), *([files.message] if files.has_drifted else [])])
            )
        else:
            yield Finding(f"plugin {name}", Severity.OK)
    entries = service.snapshot.config.settings.plugins
    for name in sorted(service.snapshot.unavailable.keys() & entries.keys()):
        severity = Severity.PROBLEM if entries[name].enabled else Severity.SKIPPED
        yield _plugin(name, severity, service.snapshot.unavailable[name])


def _plugin(name: str, severity: Severity, detail: str) -> Finding:
    return Finding(f"plugin {name}", severity, detail, field=f"plugins.{name}")
