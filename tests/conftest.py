"""For all tests in Python."""

import signal

# A shell without job control starts what runs in the background with SIGINT ignored, nohup ignores SIGHUP, and children
# inherit that. Tests that press Ctrl-C or hang up need both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
