"""Conversion of crontab lines: times, variables, names, and the lines that are refused."""

from datetime import timedelta

from ductile.config.edit.crontab import build_aliases, parse_crontab

HOUR = timedelta(hours=1)


def test_variables_apply_to_the_lines_below_them() -> None:
    found = parse_crontab('0 1 * * * a\nPATH="/bin:/opt"\nCRON_TZ = UTC\nMAILTO=x\n0 2 * * * b\nA=\n0 3 * * * c\n')
    assert [(one.line, one.timezone, dict(one.environment)) for one in found.entries] == [
        (1, None, {}),
        (5, "UTC", {"PATH": "/bin:/opt"}),
        (7, "UTC", {"PATH": "/bin:/opt", "A": ""}),
    ]


def test_every_form_of_a_time_is_accepted() -> None:
    lines = {
        "5 4 * * sun x": "5 4 * * sun",
        "*/5\t0-6/2  1,15 jan-mar * x": "*/5 0-6/2 1,15 jan-mar *",
        "@daily x": "0 0 * * *",
        "@midnight x": "0 0 * * *",
        "@yearly x": "0 0 1 1 *",
        "@reboot x": None,
    }
    found = parse_crontab("\n".join(lines))
    assert [entry.when for entry in found.entries] == [*lines.values()]
    assert {entry.command for entry in found.entries} == {"x"}


def test_lines_that_cannot_be_imported_are_listed_with_the_reason() -> None:
    """A literal percent sign is accepted."""
    refused = {
        "0 4 * * * mail me%hello": "stdin",
        "61 * * * * x": "the minute must be 0-59",
        "0 4 * * *": "has no command",
        "@fortnightly x": "is not one of @reboot",
        "not a line": "has no command",
    }
    found = parse_crontab("\n".join([*refused, r"0 4 * * * date +\%F", "SHELL=/bin/zsh", "0 5 * * * x"]))
    reasons = [line.reason for line in found.skipped]
    assert all(part in reason for part, reason in zip([*refused.values(), "SHELL=/bin/zsh"], reasons, strict=True))
    assert [entry.command for entry in found.entries] == ["date +%F"]


def test_a_system_crontab_has_users() -> None:
    (entry,) = parse_crontab("17 * * * * root run-parts /etc/cron.hourly\n", has_users=True).entries
    assert (entry.when, entry.command) == ("17 * * * *", "run-parts /etc/cron.hourly")


def test_names_come_from_the_program_and_are_unique() -> None:
    commands = ("/opt/Backup.sh", "backup", "A=1 backup x", "'a b' c", "[ -e x ] && y", "it's", "true")
    crontab = parse_crontab("".join(f"0 {hour} * * * {command}\n" for hour, command in enumerate(commands)))
    aliases, _ = build_aliases(crontab, {"true": {}}, timeout=HOUR, directory="/")
    assert [alias.name for alias in aliases] == ["backup", "backup-2", "backup-3", "a-b", "cron", "it-s", "true-2"]


def test_an_imported_line_is_not_imported_again() -> None:
    """A changed time or command is a new line."""
    aliases, _ = build_aliases(parse_crontab("0 4 * * * x ${A}"), {}, timeout=HOUR, directory="/")
    existing = {aliases[0].name: aliases[0].content}
    again, skipped = build_aliases(
        parse_crontab("0 4 * * * x ${A}\n0 5 * * * x"), existing, timeout=HOUR, directory="/"
    )
    assert [alias.source.line for alias in again] == [2]
    assert [(line.line, "already imported" in line.reason) for line in skipped] == [(1, True)]
