"""What Ductile leaves to the process supervisor, said to those who ask for it."""

import click

from ductile.core.errors import UsageInvalid


def _refusing(action: str) -> click.Command:
    """`system ACTION`: a refusal that says who does it."""

    @click.command(action, hidden=True, context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def refuse(rest: tuple[str, ...]) -> None:
        raise UsageInvalid(
            f"there is no `system {action}`: whoever started the service does that",
            hint=f"e.g. `systemctl {action} ductile` or `docker {action} ductile`; in a terminal Ctrl-C. "
            "A new configuration needs no restart: `ductile system reload`",
        )

    return refuse


stop, restart = _refusing("stop"), _refusing("restart")
