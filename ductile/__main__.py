"""The program: `ductile` and `python -m ductile`. Light, so that hardly anything happens before it has begun."""

import gc
import signal

YOUNG = 50_000
"""New objects after which garbage is looked for: most commands make fewer and none of them garbage."""


def main() -> None:
    """The console script. Ctrl-C while it is still loading ends it without a word, as it ends any program."""
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # otherwise whoever started us decides
    if loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(YOUNG)
    from ductile.cli import main as run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
