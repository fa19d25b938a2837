"""The registry of all checks. Every report selects checks by what they inspect, and shows their findings in its form.

`system doctor`: config, state, host, plugins. `system selfcheck`: ledger. `GET /system/doctor`: config.
`GET /system/selfcheck`: service. A start and `config check` call `config.checks.examine`, as `Installation.loaded` does
for the check `configuration`: a start must not depend on this package, and `config check` would load twice as long.
"""

from ductile.ops.checks import config, host, ledger, service, state
from ductile.ops.checks.check import Check, Finding, Installation, Where

CHECKS = (
    Check("pending_edit", Where.CONFIG, config.check_pending_edit),
    Check("configuration", Where.CONFIG, config.check_configuration),
    Check("seal", Where.CONFIG, config.check_seal),
    Check("modes", Where.STATE, state.check_modes),
    Check("ledger_file", Where.STATE, state.check_ledger_file),
    Check("state_writable", Where.STATE, state.check_state_writable),
    Check("socket", Where.STATE, state.check_socket),
    Check("temporary_files", Where.STATE, state.check_temporary_files),
    Check("leftover_processes", Where.STATE, state.check_leftover_processes),
    Check("disk", Where.STATE, state.check_disk),
    Check("open_files", Where.STATE, state.check_open_files),
    Check("clock", Where.HOST, host.check_clock),
    Check("time_zone", Where.HOST, host.check_time_zone),
    Check("plugins", Where.HOST, host.check_plugins_usable),
    Check("plugin_health", Where.PLUGINS, host.check_plugin_health),
    Check("invariants", Where.LEDGER, ledger.check_invariants),
    Check("config_in_use", Where.SERVICE, service.check_config_in_use),
    Check("queue_readable", Where.SERVICE, service.check_queue_readable),
    Check("writer", Where.SERVICE, service.check_writer),
    Check("plugins_in_use", Where.SERVICE, service.check_plugins_in_use),
)
"""In the order in which reports show them."""


def diagnose(installation: Installation, *, with_health: bool) -> list[Finding]:
    """Run the checks of `system doctor`. Without a path of a ledger, there is no state directory."""
    state = (Where.STATE,) if installation.has_ledger else ()
    plugins = (Where.PLUGINS,) if with_health else ()
    return run_checks(installation, Where.CONFIG, *state, Where.HOST, *plugins)


def run_checks(installation: Installation, *where: Where) -> list[Finding]:
    """Run the checks that inspect `where`. Returns their findings in the order of the registry."""
    return [finding for check in CHECKS if check.where in where for finding in check.run(installation)]
