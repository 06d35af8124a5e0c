"""bpslaunch: starts the processes of a job.

main.py         the command line, and which mode it means
environment.py  what DMLC_* and BYTEPS_* say; a wrong one is named
plan.py         the processes to start, as data: (role, command, environment, cores)
cores.py        which cores each worker of a machine is bound to
crew.py         runs a plan: starts, watches, ends; no process survives it
keeper.py       a small process that ends the crew if bpslaunch itself is killed
screen.py       the ranks' output, line by line, with a prefix
"""
