"""What every test of the repository shares: how long Hypothesis waits on a busy machine, and that Ctrl-C is heard."""

from __future__ import annotations

import os
import signal

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # an environment whose tests do not use it
    settings = None

# Where CI is set Hypothesis takes a profile of its own, which also repeats the same examples in every run.
if settings is not None and "CI" not in os.environ:
    settings.register_profile("cacheir", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.load_profile("cacheir")

# A shell starts what it puts into the background with SIGINT ignored, and every child would inherit that: tests that
# press Ctrl-C on one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
