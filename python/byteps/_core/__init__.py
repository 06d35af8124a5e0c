"""What all framework layers share: the C library, a job, and the one job of this process.

library.py   finds and loads libbyteps.so
abi.py       include/byteps/byteps.h as ctypes: structures and prototypes
errors.py    the exceptions
elements.py  what dtypes travel as
exchange.py  Exchange: what ranks agree about when they exchange a tensor
names.py     the part of a gradient's name that comes from its variable
client.py    Job: one membership in a job
bridge.py    the native shims of frameworks
reduction.py      Average, Sum, Min, Max, Product, and factors
process_sets.py   operations among some of the ranks
compression.py    compressors: the interface, none, casts
collectives.py    gathering, scattering, all-to-all as plans over exchanges
driver.py         plans that go on by themselves
objects.py        any Python objects between ranks
agreement.py      whether all ranks mean the same
mixed.py     the base of classes that are mixed in before a user's own
horovod.py   what scripts for Horovod ask beside collectives: init, barrier, join, *_built
api.py       the names that every layer has
session.py   the process's own job: init, shutdown, suspend, resume, rank, size
threads.py   whether another thread of this process might submit something

No framework is imported here: tensors come as addresses.
"""
