"""What the flight recorders of a job's processes left, and what it says. bps why and bpslaunch stand on it; it imports
nothing of either.

fields.py       fields of JSON objects that nobody vouches for
causes.py       causes: what ended a job or an operation, in fields
flight.py       reads the files
form_1.py       those of before causes were fields; the only place that knows a sentence
survived.py     losses after which the job went on
absences.py     which sums a lost worker is not in
suspects.py     what may have been the first cause
first_cause.py  what was, in words
"""
