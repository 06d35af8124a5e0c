"""What is measured, as data: one table. bench/run.py runs it, bench/report.py describes it."""

from __future__ import annotations

import dataclasses
import pathlib

import limits
import models
import steps
from netlab import bits_per_second

MIB = 1 << 20
LATENCY_BYTES = 64 << 10  # below, a card's rate says nothing about the time
FLAT = (("BYTEPS_LOCAL_REDUCE", "0"),)  # every rank for itself, also where loopback stands for several machines
FLAT_TOO = (("flat", FLAT),)
TCP_TOO = (("tcp", (("BYTEPS_ENABLE_IPC", "0"),)),)  # the same without shared memory
TOLD_100 = (("BYTEPS_NIC_MBPS", "100"),)  # the cards here say 10 Gbit/s, whatever shapes them
RINGS = ("gloo", "horovod", "mpi", "mpi ring")  # rivals whose limit is a ring's
BEST_RIVALS = ("gloo", "mpi", "mpi-ring")
TRACES = pathlib.Path(__file__).resolve().parent.parent / "build" / "bench" / "traces"
MLP = (64, 3500, 3500, 3500, 10)
MLP_BYTES = 4 * sum(wide * narrow + narrow for wide, narrow in zip(MLP, MLP[1:]))
POWERSGD_RANK = 4
# By the last word of a turn, up to a colon: how many times fewer bytes travel. PowerSGD: of the MLP, whose matrices
# become two thin ones each.
FEWER = {"float16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "int8": 32 / 8.125, "int4": 32 / 4.5}
FEWER["powersgd"] = MLP_BYTES / 4 / sum(POWERSGD_RANK * (wide + narrow) + narrow for wide, narrow in zip(MLP, MLP[1:]))
SMALL_TENSORS = 160  # in the word "small" of framework_worker.py
FRAMEWORK_BYTES = 4 * (64 * 1024 + 1024 * 1024 * 2 + 1024 * 10 + 3 * 1024 + 10)  # framework_model.py


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    section: str  # of the report
    title: str
    workers: int
    extra: int  # servers on machines of their own
    colocated: bool = False  # each worker's machine runs a server too
    hosts: tuple = ()  # how many ranks each host has; empty: every worker has a host of its own
    rate: str | None = "1gbit"  # None: loopback, one machine
    delay_ms: float = 0.0  # from host to host: half a round trip
    loss: float = 0.0  # of frames, by chance
    cards: int = 1  # of each host, and each of that rate
    one_subnet: bool = False  # for all of them
    slow_servers: tuple = ()  # (server on a machine of its own, its rate)
    size: int = 64 * MIB  # bytes of all tensors together
    tensors: int = 1
    model: str = ""  # a list of models.py instead of equal tensors; program step: of steps.py
    program: str = "push_pull"  # or train, step, sockets, a kind of framework_worker.py: what the workers are
    operations: int = 1  # one after the other, in a round
    repeats: int = 7  # turns of each group
    from_first: bool = False  # the first turn, with connections that nothing went over before, is none to warm up
    warm: int = 0  # more of them before, whose time does not count
    worker_options: tuple = ()
    last_worker_options: tuple = ()
    env: tuple = ()  # (name, value) for our processes
    variants: tuple = ()  # (label, ((name, value), ...)): more groups of ours
    words: tuple = ("go",)  # what a turn is told; each gives a figure of its own
    busy: tuple = (0,)  # each turn with something else that computes on so many cores
    cores: tuple = ()  # loopback: (servers' core, workers' core)
    rivals: tuple = ("gloo",)
    frameworks: tuple = ()  # program step: more groups of ours, whose workers train with these instead of torch
    from_last_start: bool = False  # time counts from the last worker's start
    idle_s: float = 0.0  # how long to watch all processes of ours do nothing, at the end
    target: float | None = None  # limit / time that issue 5 asks for
    gloo_target: float | None = None  # gloo's time / ours
    cards_target: float | None = None  # the time of ours with one card / ours
    flat_target: float | None = None  # the time of ours with every rank for itself / ours
    cpu_target: float | None = None  # CPU seconds of all our processes / the same with every rank for itself
    card_target: float | None = None  # most bytes over a host's card, in one direction / size
    time_target_s: float | None = None
    wanted_target: float | None = None  # most Wanted for a frame; and no drops then
    quick: bool = False

    def byte_rate(self):
        """Of a host, all its cards together."""
        return self.cards * bits_per_second(self.rate) / 8 * limits.PAYLOAD if self.rate else None

    def ranks(self):
        """How many each host of workers has."""
        return self.hosts or (1,) * self.workers

    def host_of(self, rank):
        """Ranks of a host follow each other, so that a ring in their order leaves each host once."""
        return [host for host, count in enumerate(self.ranks()) for _ in range(count)][rank]

    def limit(self):
        """Seconds per operation with this scenario's servers; None on loopback, and where latency decides."""
        rate = self.byte_rate()
        if rate is None or self.size < LATENCY_BYTES:
            return None
        if self.slow_servers:
            slow = dict(self.slow_servers)
            rates = [bits_per_second(slow.get(i, self.rate)) / 8 * limits.PAYLOAD for i in range(self.extra)]
            return limits.unequal_servers(self.workers, self.size, rate, rates)
        return limits.servers(len(self.ranks()), self.extra, self.colocated, self.size, rate)

    def ring_limit(self):
        return limits.ring(self.workers, self.size, self.byte_rate()) if self.limit() else None

    def limit_of(self, word, kind, alone=steps.NOT_MEASURED):
        """That of a figure: what its workers are told, and the kind of their group. Rivals have their hosts alone.
        `alone`: of a training step, what it takes by itself."""
        limit = self.ring_limit() if kind in RINGS else self.limit()
        if self.program != "step":
            return limit and limit / FEWER.get(word.split()[-1].partition(":")[0], 1.0)
        if limit is None:
            return None
        layers, passes = steps.model(self.model), steps.PASSES if "accumulated" in word else 1
        sent = steps.buckets(layers) if word == "go ddp" or (kind == "gloo" and word != "go ddp4") else None
        if "unused" in word:  # one of equal ones; a bucket goes whole
            layers = [(layers[0][0], 0.0), *layers[1:]] if sent else layers[1:]
        if word.startswith("compute"):
            return max(alone.step_s, passes * (steps.FORWARD_S + steps.BACKWARD_S) * sum(share for _, share in layers))
        if word == "go fsdp":
            return steps.sharded(layers, self.byte_rate(), self.workers, kind not in RINGS, alone)
        is_crossed = word == "go crossed" or kind == "mxnet"  # whose engine waits for nothing
        return steps.ideal(layers, self.size / limit, is_crossed, sent, passes, alone)

    def memory_bytes(self):
        """About what all groups of the scenario hold at once."""
        if self.program == "step":  # weights and gradients of each model; what the frameworks are themselves
            models_ = 2 * len(self.words) + 4 * len(self.rivals) + 6 * len(self.frameworks)
            return self.workers * (models_ * self.size + len(self.frameworks) * 300 * MIB)
        ours = (1 + len(self.variants)) * (self.workers + 1) * self.size * self.operations
        return ours + len(self.rivals) * self.workers * self.size * self.operations


def _large():
    section = "64 MiB in one tensor, servers on machines of their own"
    for n, rate, more in [
        (2, "1gbit", {"target": 0.985, "rivals": BEST_RIVALS, "quick": True}),
        (4, "1gbit", {"target": 0.98, "gloo_target": 1.48, "rivals": BEST_RIVALS, "quick": True, "idle_s": 3.0}),
        (8, "1gbit", {"target": 0.93, "rivals": BEST_RIVALS}),
        (2, "500mbit", {}),
        (4, "500mbit", {}),
        (8, "500mbit", {"target": 0.98, "gloo_target": 1.7}),
        (4, "2gbit", {"target": 0.95}),
    ]:
        suffix = {"1gbit": "", "500mbit": "-500m", "2gbit": "-2g"}[rate]
        speed = {"1gbit": "1 Gbit/s", "500mbit": "500 Mbit/s", "2gbit": "2 Gbit/s"}[rate]
        yield Scenario(f"n{n}k{n}{suffix}", section, f"n=k={n}, {speed}", n, n, rate=rate, **more)


def _busy():
    section = "Where something else computes"
    title = "64 MiB in one tensor, n=k=4, 1 Gbit/s"
    yield Scenario("busy", section, title, 4, 4, busy=(0, 1, 2))


def _split():
    section = "Few servers, and unequal ones"
    yield Scenario("n4c", section, "n=4, a server beside each worker", 4, 0, True, target=0.98, gloo_target=1.0)
    for k in (1, 2, 3):
        title = f"n=4, a server beside each worker and {k} on machines of their own"
        yield Scenario(f"n4c-k{k}", section, title, 4, k, True, target=0.96)
    yield Scenario("n4k2", section, "n=4, 2 servers on machines of their own", 4, 2)
    slow = ((0, "500mbit"),)
    yield Scenario("n4k4-slow", section, "n=k=4, one server at half rate", 4, 4, slow_servers=slow, target=0.9)


def _hosts():
    section = "Several ranks on a host"
    shared = {"variants": FLAT_TOO}
    full = {**shared, "gloo_target": 1.6, "card_target": 1.06}
    two, four = (4, 4), (2, 2, 2, 2)
    title, more = "2 hosts of 4 ranks, 2 servers on machines of their own", {"flat_target": 3.6, "cpu_target": 0.65}
    yield Scenario("h2l4k2", section, title, 8, 2, hosts=two, target=0.93, **full, **more)
    beside = "2 hosts of 4 ranks, a server beside them on each"
    yield Scenario("h2l4c", section, beside, 8, 0, True, hosts=two, target=0.93, **full)
    title = "4 hosts of 2 ranks, 4 servers on machines of their own"
    yield Scenario("h4l2k4", section, title, 8, 4, hosts=four, target=0.92, flat_target=1.8, **full)
    title = "4 hosts of 4 ranks, 4 servers on machines of their own, 500 Mbit/s"
    slower = {"rate": "500mbit", "target": 0.92, **full, "gloo_target": 1.7}
    yield Scenario("h4l4k4-500m", section, title, 16, 4, hosts=(4, 4, 4, 4), **slower)
    title = "hosts of 1, 2 and 4 ranks, 3 servers on machines of their own"
    uneven = {"hosts": (1, 2, 4), "target": 0.9, "card_target": 1.06}
    yield Scenario("uneven", section, title, 7, 3, **uneven, **shared)
    small = {"hosts": two, **shared}
    title = "1 MiB, 2 hosts of 4 ranks, 2 servers"
    yield Scenario("1m-h2l4k2", section, title, 8, 2, size=MIB, operations=20, target=0.75, **small)
    title = title.replace("1 MiB", "4 KiB")
    yield Scenario("4k-h2l4k2", section, title, 8, 2, size=4096, operations=200, **small)
    title = "4 KiB, 2 hosts of 2 ranks, 2 servers"
    yield Scenario("4k-h2l2k2", section, title, 4, 2, size=4096, operations=200, hosts=(2, 2), **shared)
    without = ("without server", (("DMLC_NUM_SERVER", "0"),))
    title = "one host of 4 ranks, a server beside them, no network"
    yield Scenario("h1l4", section, title, 4, 1, hosts=(4,), rate=None, variants=(*FLAT_TOO, without))


def _cards():
    """All cards of a machine, beside its first alone."""
    section = "Two cards on a host"
    one = (("one card", (("DMLC_INTERFACE", "eth0"),)),)
    both = {"cards": 2, "variants": one, "rivals": (), "cards_target": 1.9}
    for rate, suffix in (("1gbit", ""), ("500mbit", "-500m"), ("200mbit", "-200m")):
        speed = {"1gbit": "1 Gbit/s", "500mbit": "500 Mbit/s", "200mbit": "200 Mbit/s"}[rate]
        for ranks in (1, 2):
            title = f"2 hosts of {ranks} rank{'s' * (ranks > 1)}, 2 servers, 2 cards of {speed} each"
            options = {"rate": rate, "hosts": (ranks, ranks), **both}
            yield Scenario(f"c2-h2l{ranks}k2{suffix}", section, title, 2 * ranks, 2, **options)
    title = "2 hosts of 2 ranks, 2 servers, 2 cards of 500 Mbit/s each, in one subnet"
    options = {"rate": "500mbit", "hosts": (2, 2), "one_subnet": True, **both}
    yield Scenario("c2-one-subnet", section, title, 4, 2, **options)


def _small():
    section = "Small tensors"
    for n, more in [(2, {}), (4, {"target": 0.85, "quick": True}), (8, {})]:
        options = {"size": MIB, "operations": 20, "rivals": BEST_RIVALS}
        yield Scenario(f"1m-n{n}", section, f"1 MiB, n=k={n}", n, n, **options, **more)
    spin = (("spin", (("BYTEPS_SPIN_US", "50"),)),)
    for n, more in [(2, {}), (4, {"time_target_s": 0.2e-3, "quick": True}), (8, {})]:
        title = f"4 KiB, n=k={n}"
        options = {"size": 4096, "operations": 200, "rivals": ("gloo", "mpi"), "variants": spin}
        yield Scenario(f"4k-n{n}", section, title, n, n, **options, **more)
    python = {"program": "python", "rivals": ("client", "gloo")}
    small = {"size": 4096, "operations": 200, "time_target_s": 0.3e-3}
    yield Scenario("4k-n4-python", section, "4 KiB, n=k=4, through Python", 4, 4, **small, **python)
    large = {"size": MIB, "operations": 20, "target": 0.85}
    yield Scenario("1m-n4-python", section, "1 MiB, n=k=4, through Python", 4, 4, **large, **python)
    one_core = (("BYTEPS_SERVER_ENGINE_THREAD", "1"),)
    title = "10,000 tensors of 4 KiB, 2 workers, one server core, loopback"
    many = {"rate": None, "size": 10_000 * 4096, "tensors": 10_000, "env": (*one_core, *FLAT)}
    time = {"time_target_s": 10_000 / 250_000}
    over_tcp = {"variants": TCP_TOO}
    yield Scenario("10k", section, title, 2, 1, cores=("0", "1"), quick=True, **over_tcp, **many, **time)
    yield Scenario("10k-free", section, title + ", not pinned", 2, 1, **over_tcp, **many)


def _order():
    section = "Late workers, and workers that differ in their order"
    late = ("--late-ms", "100")
    title = "n=k=4, one worker starts 100 ms late; from its start"
    yield Scenario("late", section, title, 4, 4, last_worker_options=late, from_last_start=True, target=0.98)
    title = "n=k=4, 64 tensors of 1 MiB, each rank begins with another"
    options = {"tensors": 64, "worker_options": ("--stagger", "--priorities", "0")}
    yield Scenario("order", section, title, 4, 4, target=0.94, **options)


def _slow():
    section = "Slow lines"
    slow = {"rate": "100mbit", "size": 16 * MIB, "target": 0.96, "wanted_target": 0.05, "env": TOLD_100}
    for n in (4, 8):
        yield Scenario(f"n{n}k{n}-100m", section, f"16 MiB, n=k={n}, 100 Mbit/s, told", n, n, **slow)
        title = f"64 tensors of 256 KiB, n=k={n}, 100 Mbit/s, told, each rank begins with another"
        options = {"tensors": 64, "worker_options": ("--stagger", "--priorities", "0")}
        yield Scenario(f"order-n{n}-100m", section, title, n, n, **options, **slow)


def _long():
    """Lines between cities: what TCP and credit make of the time that answers need."""
    section = "Long lines"
    for name, loss, title, target in [("wan", 0.0, "", 0.9), ("wan-loss", 0.001, ", 0.1 % lost", 0.85)]:
        title = f"64 MiB, n=k=2, 50 Mbit/s, a round trip of 100 ms{title}"
        options = {"rate": "50mbit", "delay_ms": 50.0, "loss": loss, "target": target, "rivals": ()}
        yield Scenario(name, section, title, 2, 2, from_first=True, repeats=5, **options)


def _models():
    section = "Gradients of real models"
    for model, title, n in [
        ("resnet50", "ResNet-50", 4),
        ("vgg16", "VGG-16", 4),
        ("bert_large", "BERT-large", 2),
        ("gpt2_medium", "GPT-2 medium", 2),
    ]:
        size = 4 * models.parameter_count(model)
        title = f"{title}, {size / 4e6:.1f} M parameters, n=k={n}"
        yield Scenario(model, section, title, n, n, size=size, model=model, words=("go", "go fifo"), target=0.94)


def _training():
    section = "Training"
    title = "MLP of 24.8 M parameters, digits, batch 32 per worker, n=k=4"
    words = ("go", "go crossed", "compute", "communicate")
    options = {"program": "train", "size": MLP_BYTES, "operations": 4, "words": words, "gloo_target": 1.5}
    yield Scenario("mlp", section, title, 4, 4, **options)
    title = "the same, 2 hosts of 2 workers, 2 servers on machines of their own"
    options.update(gloo_target=1.3, hosts=(2, 2), variants=FLAT_TOO)
    yield Scenario("mlp-h2l2k2", section, title, 4, 2, **options)


def _coded():
    """Fewer bytes: as the C interface and torch's layer send them, beside what torch's DDP has."""
    section = "Gradient compression"
    told = {"rate": "100mbit", "env": TOLD_100}
    options = {"hosts": (1,) * 4, "words": ("go", "go float16", "go bfloat16", "go int8", "go int4"), "rivals": ()}
    slow = {"target": 0.95, "wanted_target": 0.05, **told}
    yield Scenario("coded-n4", section, "64 MiB in one tensor, n=k=4, 1 Gbit/s", 4, 4, **options)
    yield Scenario("coded-n4-100m", section, "the same, 100 Mbit/s, told", 4, 4, **options, **slow)
    ours, hooks = ("go int8", "go int4:error_feedback"), ("go fp16", "go powersgd")
    options.update(words=("go", *ours, *hooks, "go ddp powersgd", "compute"), rivals=("gloo",))
    options.update(program="train", size=MLP_BYTES)
    title = "step of the MLP of 24.8 M parameters, n=k=4, "
    yield Scenario("coded-mlp", section, title + "1 Gbit/s", 4, 4, operations=2, repeats=5, **options)
    yield Scenario("coded-mlp-100m", section, title + "100 Mbit/s, told", 4, 4, repeats=3, **options, **told)


def _auto():
    """The choice of Compression.auto, which may be slower than plain by 2 % at most: beside computing that takes
    processors, and computing that sleeps."""
    lines = (
        ("100m", "100 Mbit/s, told", {"rate": "100mbit", "env": TOLD_100}),
        ("1g", "1 Gbit/s", {"rate": "1gbit"}),
        ("2g", "2 Gbit/s", {"rate": "2gbit"}),
        ("shm", "one machine, shared memory", {"rate": None, "env": FLAT}),
    )
    for name, line, options in lines:
        n = 2 if name == "shm" else 4
        options = {"section": "Gradient compression", "workers": n, "extra": n, "words": ("go", "go auto"), **options}
        options.update(rivals=(), repeats=5)
        title = f"step of the MLP of 24.8 M parameters, n=k={n}, {line}"
        yield Scenario(f"auto-mlp-{name}", title=title, program="train", size=MLP_BYTES, operations=2, **options)
        title = f"step of equal layers that sleep, n=k={n}, {line}"
        options["words"] += ("compute",)
        options.update(program="step", model="uniform", size=steps.bytes_of(steps.model("uniform")), warm=steps.WARM)
        yield Scenario(f"auto-step-{name}", title=title, operations=4, **options)


STEPS = "Training steps whose computation takes no processor"
HOWS = ("", "ddp", "clipped", "scaled", "accumulated", "unused")  # of step_worker.py's words, the hooks' own first
STEP_FRAMEWORKS = ("tensorflow", "keras", "jax", "mxnet")


def _step(name, title, workers, servers, model="uniform", **more):
    """Of a model whose layers sleep instead of computing: what is hidden where computing takes no processor."""
    size = steps.bytes_of(steps.model(model))
    title = f"{model}, {size / MIB:.0f} MiB, {title}"
    options = {"program": "step", "model": model, "size": size, "operations": 4, "warm": steps.WARM, **more}
    return Scenario(f"step-{name}", STEPS, title, workers, servers, **options)


def _steps():
    words = ("go", "go crossed", "go ddp", "compute")
    for model in steps.MODELS:
        for n, rate in ((2, "1gbit"), (4, "1gbit"), (2, "500mbit"), (4, "500mbit")):
            suffix, speed = {"1gbit": ("", "1 Gbit/s"), "500mbit": ("-500m", "500 Mbit/s")}[rate]
            options = {"model": model, "rate": rate, "words": words, "rivals": ("gloo", "horovod")}
            yield _step(f"{model}-n{n}{suffix}", f"n=k={n}, {speed}", n, n, **options)
    for model in ("vgg", "resnet50"):
        options = {"model": steps.slower(model), "rate": "250mbit", "words": words, "rivals": ()}
        yield _step(f"{model}-n4-slower", "n=k=4, 250 Mbit/s", 4, 4, **options)
    for hosts, k in (((2, 2), 2), ((4, 4), 2)):
        title = f"{len(hosts)} hosts of {hosts[0]} ranks, {k} servers"
        yield _step(f"uniform-h{len(hosts)}l{hosts[0]}", title, sum(hosts), k, hosts=hosts, words=words)


def _steps_of_users():
    """What else is done with an optimizer, and other frameworks; each beside torch's hooks."""
    title = "n=k=4, 1 Gbit/s, "
    words = ("go", "go ddp4", "compute", *(f"{word} {how}" for how in HOWS[2:] for word in ("go", "compute")))
    yield _step("torch-n4", title + "what is done with gradients", 4, 4, words=words)
    yield _step("fsdp-n4", title + "torch's FSDP2", 4, 4, words=("go", "go fsdp", "compute"))
    for framework in STEP_FRAMEWORKS:
        for n in (2, 4):
            options = {"words": ("go", "compute"), "rivals": (), "frameworks": (framework,)}
            yield _step(f"{framework}-n{n}", f"n=k={n}, 1 Gbit/s, {framework}", n, n, **options)


def _frameworks():
    """Each framework's layer beside torch's DDP over gloo and Horovod: a model with much to compute, and many small
    tensors."""
    words = ("go", "compute", "communicate", "small")
    section = "Frameworks: MLP of 2.2 M parameters, digits, batch 512 per worker, n=k=2; 160 tensors of 4 KiB"
    for kind in ("torch", "torch-crossed", "torch-ddp", "jax", "tensorflow", "keras", "mxnet"):
        rivals = ("gloo", "horovod")
        options = {"program": kind, "size": FRAMEWORK_BYTES, "operations": 4, "words": words, "rivals": rivals}
        yield Scenario(f"with-{kind}", section, kind, 2, 2, **options)


def _growth():
    section = "Growth"
    options = {"rate": None, "env": FLAT, "rivals": (), "variants": TCP_TOO}
    for n in (2, 4, 8, 16, 32):
        title = f"{n} workers of {256 // n} MiB, one server, loopback"
        yield Scenario(f"grow-w{n}", section, title, n, 1, size=256 * MIB // n, **options)
    for count in (1, 10, 100, 1000):
        title = f"64 MiB in {count} tensors, 2 workers, one server, loopback"
        yield Scenario(f"grow-t{count}", section, title, 2, 1, tensors=count, **options)


def _timeline():
    section = "Recording a timeline"
    trace = {"ON": "1", "START_STEP": "0", "END_STEP": "1000000", "DIR": str(TRACES)}
    variants = (("traced", tuple((f"BYTEPS_TRACE_{name}", value) for name, value in trace.items())),)
    for name, title, size, count in (
        ("trace-64k", "1,000 tensors of 64 KiB", 64_000 << 10, 1000),
        ("trace-1m", "64 tensors of 1 MiB", 64 * MIB, 64),
    ):
        title += ", 2 workers, one server, loopback"
        options = {"rate": None, "env": FLAT, "rivals": (), "variants": variants}
        yield Scenario(name, section, title, 2, 1, size=size, tensors=count, **options)


def _shared_memory():
    section = "Worker and server on one host"
    title = "64 MiB, one worker, one server, shared memory, a core for each"
    options = {"rate": None, "variants": TCP_TOO, "rivals": ("copies",)}
    yield Scenario("shm", section, title, 1, 1, cores=("0", "1"), quick=True, **options)
    yield Scenario("shm-free", section, title.replace("a core for each", "not pinned"), 1, 1, **options)


def _processors():
    section = "Processor time per byte"
    for n in (2, 4):
        yield Scenario(f"cpu-n{n}", section, f"64 MiB, n=k={n}, beside bare sockets", n, n, rivals=("sockets",))


ALL = [
    scenario
    for family in (
        _large,
        _busy,
        _split,
        _hosts,
        _cards,
        _small,
        _order,
        _slow,
        _long,
        _models,
        _training,
        _coded,
        _auto,
        _steps,
        _steps_of_users,
        _frameworks,
        _growth,
        _timeline,
        _shared_memory,
        _processors,
    )
    for scenario in family()
]
