"""What `bps trace` says, for Python: byteps.trace.summarize(byteps.trace.read([folder])). See docs/timeline.md; it is
made in byteps/tools/trace.py."""

from byteps.tools.trace import Unreadable, read, summarize

__all__ = ["Unreadable", "read", "summarize"]
