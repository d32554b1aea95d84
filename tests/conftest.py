"""For every test: the gate's coverage stays in this process; neither the caller's shell nor a slow machine decides."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# No test asserts how long something took; a machine with other work is slow now and then.
settings.register_profile("sndr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sndr")

# The gate starts coverage through this variable; processes that tests start would each pay for it otherwise.
for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "SOURCE_DATE_EPOCH", "SNDR_TRACEBACK"):
    os.environ.pop(name, None)

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: the processes that tests
# interrupt would go on for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
