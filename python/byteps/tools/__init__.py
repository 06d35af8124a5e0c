"""bps, for people who look after jobs; each subcommand is a module with main(arguments) -> exit code.

bps.py       finds the subcommand
doctor.py    bps doctor: what hosts, ports, limits and keys are like before a job runs
doctor_checks.py    asks one host, here or there
doctor_agent.py     runs there: the launcher's agent, with these questions
doctor_findings.py  what the answers mean
doctor_rdma.py      both, for RDMA
trace.py     bps trace: where the time goes, from timelines
why.py       bps why: the first cause of a job that failed; byteps/recordings finds it, for bpslaunch too
"""
