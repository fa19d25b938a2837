"""What holds for every test: random examples are the same ones in every run, unless other ones are asked for."""

import os
import sys

from hypothesis import HealthCheck, settings

# A host that pauses for two seconds says nothing about an example.
LENIENT = (HealthCheck.too_slow,)
settings.register_profile("repeatable", derandomize=True, suppress_health_check=LENIENT)
settings.register_profile("other", derandomize=False, suppress_health_check=LENIENT)
settings.load_profile("other" if "DUCTILE_OTHER_EXAMPLES" in os.environ else "repeatable")

# Plugins are started by the interpreter itself, not by a launcher that looks for one each time.
os.environ["PATH"] = f"{sys.base_prefix}/bin:{os.environ['PATH']}"
