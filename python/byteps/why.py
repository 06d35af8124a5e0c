"""What `bps why` says, for Python: byteps.why.explain(folder), and byteps.why.absences([folder]) for which sums a lost
worker is not in. See docs/flight.md and byteps/recordings."""

from byteps.recordings.absences import Absences
from byteps.recordings.absences import read as absences
from byteps.recordings.first_cause import Verdict, explain

__all__ = ["Absences", "Verdict", "absences", "explain"]
