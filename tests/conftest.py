"""For all tests in Python."""

import signal

# A shell without job control starts what runs in the background with SIGINT ignored, and children inherit that. Tests
# that press Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
