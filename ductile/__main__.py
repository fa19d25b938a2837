"""The program: `ductile` and `python -m ductile`.

Imports the command line inside `main`, so that Ctrl-C during the import ends the program without a traceback.
"""

import gc
import signal

GARBAGE_THRESHOLD = 200_000
"""New objects before a garbage collection. A command creates fewer; `system start` restores Python's default."""


def main() -> None:
    """Run the command line."""
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(GARBAGE_THRESHOLD)
    from ductile.cli import main as run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
