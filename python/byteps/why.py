"""What `bps why` says, for Python: byteps.why.explain(folder). See docs/flight.md and byteps/tools/why.py."""

from byteps.tools.why import Verdict, explain

__all__ = ["Verdict", "explain"]
