"""What `bps why` says, for Python: byteps.why.explain(folder). See docs/flight.md and byteps/recordings."""

from byteps.recordings.first_cause import Verdict, explain

__all__ = ["Verdict", "explain"]
