"""What every test of the repository shares: how long Hypothesis waits on a machine that does other work too."""

from __future__ import annotations

import os

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # an environment whose tests do not use it
    settings = None

# Where CI is set Hypothesis takes a profile of its own, which also repeats the same examples in every run.
if settings is not None and "CI" not in os.environ:
    settings.register_profile("cacheir", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.load_profile("cacheir")
