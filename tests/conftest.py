"""What holds for every test: random examples are the same ones in every run, unless other ones are asked for."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("other", derandomize=False)
settings.load_profile("other" if "DUCTILE_OTHER_EXAMPLES" in os.environ else "repeatable")
