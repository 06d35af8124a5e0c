"""What a script gives by place means the same here as in Horovod: our signatures beside a list of its own
(horovod_signatures.txt), in every layer but torch's. Where that cannot be, because the original BytePS has another
order, nothing may be taken for something else: a TypeError says both spellings."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import IMPORTED, MXNET_PYTHON, TENSORFLOW, clean_environment
from zygote import fork_servers

pytestmark = pytest.mark.timeout(600)  # frameworks are imported

LIST = Path(__file__).with_name("horovod_signatures.txt")
ENVIRONMENTS = {
    "byteps.tensorflow": TENSORFLOW,
    "byteps.tensorflow.keras": TENSORFLOW,
    "byteps.keras": {"KERAS_BACKEND": "torch"},
    "byteps.mxnet": {},
}
BY_NAME_ONLY = {
    "callbacks.LearningRateScheduleCallback",
    "callbacks.LearningRateWarmupCallback",
    "callbacks.BestModelCheckpoint",
}
# Those whose order is the original's. What stands fourth is another type, and refused.
OF_BYTEPS = {("byteps.mxnet", "DistributedTrainer")}

ASK = """
import importlib, inspect, json, sys
module = importlib.import_module(sys.argv[1])
found = {}
for name in sys.argv[2:]:
    thing = module
    for part in name.split("."):
        thing = getattr(thing, part, None)
    if thing is None:
        continue
    made = thing.__new__ if name == "DistributedOptimizer" and isinstance(thing, type) else thing
    made = thing.__init__ if isinstance(thing, type) and made is thing else made
    parameters = [p for p in inspect.signature(made).parameters.values() if p.name not in ("self", "cls")]
    found[name] = [(p.name, p.kind.name, p.default is p.empty) for p in parameters]
print(json.dumps(found))
"""


def read_list():
    """{module: {function: [(parameter, whether it is needed)]}}; what is in all modules is in each."""
    modules, current = {}, None
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            current = modules.setdefault(line[1:].split(":")[0], {})
        elif line and not line.startswith("#"):
            name, parameters = re.fullmatch(r"([\w.]+)\((.*)\)", line).groups()
            parts = [part.strip() for part in parameters.split(",") if part.strip()]
            current[name] = [(part.split("=")[0], "=" not in part) for part in parts]
    shared = modules.pop("all")
    return {module: {**shared, **functions} for module, functions in modules.items()}


def python_of(module):
    if module != "byteps.mxnet":
        return sys.executable
    if not MXNET_PYTHON.exists():
        pytest.skip(f"there is no {MXNET_PYTHON}")
    return str(MXNET_PYTHON)


def run(module, script, *arguments):
    environ = {**clean_environment(), **ENVIRONMENTS[module]}
    imports = IMPORTED["keras_without_tensorflow" if module == "byteps.keras" else module]
    server = fork_servers.get(python_of(module), imports, environ)
    command = [*server.command(), "-c", script, module, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", ENVIRONMENTS)
def test_what_stands_where_is_as_in_horovod(module):
    theirs = read_list()[module]
    ours = run(module, ASK, *theirs)
    assert len(ours) > len(theirs) * 0.9, sorted(set(theirs) - set(ours))  # what is missing is in the docs
    wrong = []
    for name, found in ours.items():
        kinds = {parameter: kind for parameter, kind, _ in found}
        by_place = [parameter for parameter, kind, _ in found if kind == "POSITIONAL_OR_KEYWORD"]
        needed = {parameter for parameter, kind, is_needed in found if is_needed and not kind.startswith("VAR_")}
        known = [parameter for parameter, _ in theirs[name]]
        unknown = [each for each in known if each not in kinds and "VAR_KEYWORD" not in kinds.values()]
        if unknown and (module, name) not in OF_BYTEPS:
            wrong.append(f"{name} does not know {unknown}")
        if name in BY_NAME_ONLY:
            if by_place or "VAR_POSITIONAL" not in kinds.values():
                wrong.append(f"{name} takes {by_place} by place")
        elif (module, name) not in OF_BYTEPS and by_place[: len(known)] != known:
            wrong.append(f"{name}: {by_place} is not {known}")
        if needed - {parameter for parameter, is_needed in theirs[name] if is_needed}:
            wrong.append(f"{name} needs {sorted(needed)}")
    assert not wrong, "\n".join(wrong)


CALLS = """
import importlib, json, sys
bps = importlib.import_module(sys.argv[1])
bps.init()
calls = {
%s
}
found = {}
for name, call in calls.items():
    try:
        call()
    except (TypeError, ValueError) as error:
        found[name] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


@pytest.mark.parametrize("module", ["byteps.keras", "byteps.tensorflow.keras"])
def test_the_callbacks_with_two_orders_take_nothing_by_place(module):
    found = run(
        module,
        CALLS
        % """
    "warmup": lambda: bps.callbacks.LearningRateWarmupCallback(0.1, 5),
    "schedule": lambda: bps.callbacks.LearningRateScheduleCallback(0.1, 0.5),
    "nothing": lambda: bps.callbacks.LearningRateScheduleCallback(),
    "best": lambda: bps.callbacks.BestModelCheckpoint("val_loss", 1),
    "by name": lambda: [
        bps.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=5),
        bps.callbacks.LearningRateScheduleCallback(initial_lr=0.1, multiplier=0.5),
        bps.callbacks.BestModelCheckpoint(filepath="best.keras", monitor="val_loss"),
    ],
""",
    )
    assert {kind for kind, _ in found.values()} == {"TypeError"} and sorted(found) == sorted(
        ["warmup", "schedule", "nothing", "best"]
    )
    texts = {name: text for name, (_, text) in found.items()}
    assert "LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=5) as in Horovod" in texts["warmup"]
    assert "(warmup_epochs=0.1, momentum_correction=5) as in BytePS" in texts["warmup"]
    assert "(initial_lr=0.1, multiplier=0.5) as in Horovod" in texts["schedule"]
    assert "(multiplier=0.1, start_epoch=0.5) as in BytePS" in texts["schedule"]
    assert "needs multiplier=" in texts["nothing"]
    assert "(filepath='val_loss', monitor=1) as in Keras" in texts["best"]
    assert "(monitor='val_loss', verbose=1) as in Horovod" in texts["best"]


def test_what_the_original_had_by_place_in_tensorflow_is_no_process_set():
    found = run(
        "byteps.tensorflow",
        CALLS
        % """
    "variables": lambda: bps.broadcast_variables([], 0, "scope"),
    "broadcast": lambda: bps.broadcast([1.0], 0, "scope", "name"),
    "scattered": lambda: bps.reducescatter([1.0], "", None, "Sum", "name", False),
    "group": lambda: bps.grouped_reducescatter([[1.0]], "", None, "Sum", "name"),
    "horovod": lambda: [
        bps.broadcast_variables([], 0, bps.global_process_set, True),
        bps.broadcast([1.0], 0, "name", False, bps.global_process_set),
        bps.reducescatter([1.0], "", bps.Compression.none, bps.Sum, "name", bps.global_process_set, False, 1.0),
        bps.grouped_reducescatter([[1.0]], "", bps.Compression.none, bps.Sum, bps.global_process_set, 1.0, 1.0),
    ],
""",
    )
    assert sorted(found) == ["broadcast", "group", "scattered", "variables"], found
    assert found["variables"][0] == "TypeError" and "scope='scope'" in found["variables"][1]
    assert found["broadcast"][0] == "TypeError" and "scope='scope', name='name'" in found["broadcast"][1]
    assert "process_set is False" in found["scattered"][1] and "process_set is 'name'" in found["group"][1]


def test_the_trainer_of_mxnet_refuses_a_compressor_where_the_original_has_the_root():
    found = run(
        "byteps.mxnet",
        CALLS
        % """
    "trainer": lambda: bps.DistributedTrainer({}, "sgd", None, bps.Compression.fp16),
""",
    )
    assert found["trainer"][0] == "TypeError", found
    assert "root_rank=" in found["trainer"][1] and "compression=" in found["trainer"][1]
