"""Run the commands of a documentation page in its own demo instance."""

import os
import random
import re
import socket
import sys
from pathlib import Path

from tests.docs.transcript import Block, Shell, blocks_of

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("DUCTILE_", "VIRTUAL_ENV"))}
DEMO = "ductile config init --demo"
WRAPPER = '#!/bin/sh\nexec {python} -m ductile "$@"\n'


def free_ports() -> int:
    """Return the first of two consecutive free ports."""
    for port in range(random.randrange(20_000, 25_000, 2), 30_000, 2):
        with socket.socket() as api, socket.socket() as webhooks:
            try:
                api.bind(("127.0.0.1", port))
                webhooks.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")


def with_ports(page: str, port: int) -> str:
    """Replace the ports 8080 and 8081 of the page with the ports of this run."""
    page = page.replace(":8080", f":{port}").replace(":8081", f":{port + 1}")
    return re.sub(rf"{DEMO}(?! --port)", f"{DEMO} --port {port}", page)


def run_page(page: str, directory: Path) -> int:
    """Run every marked block of the page, compare the output and return the number of blocks.

    A page that does not create an instance gets a running demo, as in docs/getting-started.md.
    """
    (directory / "bin").mkdir()
    (directory / "bin" / "ductile").write_text(WRAPPER.format(python=sys.executable))
    (directory / "bin" / "ductile").chmod(0o700)
    environ = {**CLEAN, "PATH": f"{directory / 'bin'}:{os.environ['PATH']}", "HOME": str(directory)}
    port = free_ports()
    blocks = list(blocks_of(with_ports(page, port)))
    shell = Shell.open(directory, environ)
    try:
        if not any(DEMO in block.body for block in blocks):
            init = f"{DEMO} --port {port} --config-dir .ductile\nexport DUCTILE_CONFIG_DIR=$PWD/.ductile"
            shell.run_block(Block("run", "", "sh", init))
            shell.run_block(Block("start", "", "console", "$ ductile system start\n"))
        for block in blocks:
            shell.run_block(block)
    finally:
        shell.close()
    return len(blocks)
