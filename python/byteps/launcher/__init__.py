"""bpslaunch: starts the processes of a job.

standard.py     how a command ends on Ctrl-C, without a reader, and begins without standard descriptors
main.py         the command line, and which mode it means
environment.py  what DMLC_* and BYTEPS_* say; a wrong one is named
plan.py         the processes to start, as data: (role, command, environment, cores)
key.py          the job key, and how processes get it
hostfile.py     the hosts of a job
hosts.py        which process runs on which host, and what is told to whom
link.py         one ssh connection, and the agent at its other end
agent.py        what runs on each host: starts what it is told to, ends it when the connection ends
frames.py       what the two say to each other
cores.py        which cores each worker and server of a machine is bound to
bounds.py       whether the network cards of the servers hold a job back
crew.py         runs a plan: starts, watches, ends; no process survives it
recordings.py   where the processes leave their last events, and the first cause at the end
sessions.py     each process leads a session, so that all it starts can be found and ended
keeper.py       a small process that ends the crew if bpslaunch itself is killed
screen.py       the ranks' output, line by line, with a prefix
outlet.py       where it goes, without waiting for who reads it
"""
