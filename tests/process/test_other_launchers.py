"""A script that is started by a launcher which knows nothing of byteps: torchrun, mpirun, srun, Horovod's. Its
processes would each be a job of one and train n models without a word; so init() refuses, in every layer, and says
what to type.
Which variables tell of which launcher is in tests/app/launch_test.cc."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import test_torch_distributed
from place import ROOT
from test_torch_distributed import torchrun
from zygote import fork_servers

installed, place = test_torch_distributed.installed, test_torch_distributed.place  # fixtures
RECORDED = ROOT / "tests/app/launch"
MXNET_PYTHON = ROOT / ".venv-mxnet/bin/python"
LAYERS = {
    "byteps.torch": {},
    "byteps.tensorflow": {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    "byteps.tensorflow.keras": {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    "byteps.keras": {"KERAS_BACKEND": "torch"},
    "byteps.jax": {"JAX_PLATFORMS": "cpu"},
    "byteps.mxnet": {},
}
IMPORTED = {
    "byteps.tensorflow": ["tensorflow", "tf_keras"],
    "byteps.tensorflow.keras": ["tensorflow", "tf_keras"],
    "byteps.keras": ["-tensorflow", "keras"],  # which would import it
    "byteps.jax": ["jax"],
    "byteps.mxnet": ["mxnet"],
}
TRAIN = """
import importlib
bps = importlib.import_module({layer!r})
bps.init()
print(f"{{bps.rank()}} of {{bps.size()}}\\n", end="")  # one write: ranks share a pipe
"""

# torchrun ends the other rank as soon as one has ended: both say what they have to say before that.
INIT_TOGETHER = """
try:
    bps.init()
except Exception:
    import os, pathlib, time, traceback
    traceback.print_exc()
    pathlib.Path("refused." + os.environ["RANK"]).touch()
    deadline_s = time.monotonic() + 30
    while len(list(pathlib.Path(".").glob("refused.*"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    raise SystemExit(1)
"""


def recorded(name):
    lines = (RECORDED / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def run(place, words, environ=()):
    process = place.start(words, environ)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def suggested(text):
    """The command of the message, as a shell takes it, without the name of the interpreter."""
    command = shlex.split(re.search(r"in place of \S+: (bpslaunch .*?);", text).group(1))
    return command[1 : command.index("--") + 1], command[command.index("--") + 1 :]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_task_of_srun_is_refused_with_the_command_to_use(place, layer):
    python = str(MXNET_PYTHON) if layer == "byteps.mxnet" else sys.executable
    if not Path(python).exists():
        pytest.skip(f"there is no {python}")
    environ = {**LAYERS[layer], **recorded("slurm-22.05-step")}
    # What was typed is seen only where nothing forks.
    is_typed = layer == "byteps.torch"
    full = {**place.environ, **environ}
    start = [python] if is_typed else fork_servers.get(python, IMPORTED[layer], full).command()
    words = [*start, script_of(place, layer), "--lr", "0.1"]
    code, out, err = run(place, words, environ)
    assert code == 1 and out == "", out + err
    assert "srun has started 6 processes" in err and "BYTEPS_ENGINE=none" in err, err
    assert "sed 's/$/ workers=2/' > job.hosts; bpslaunch --hosts job.hosts -- " in err
    assert not is_typed or err.rstrip().splitlines()[-1].count("train.py --lr 0.1") == 1, err
    assert run(place, words, {**environ, "BYTEPS_ENGINE": "none"})[:2] == (0, "0 of 1\n")


def script_of(place, layer):
    path = Path(place.folder) / "train.py"
    path.write_text(TRAIN.format(layer=layer))
    return path


def test_the_script_of_sbatch_is_alone(place):
    words = [sys.executable, script_of(place, "byteps.torch")]
    assert run(place, words, recorded("slurm-22.05-batch"))[:2] == (0, "0 of 1\n")


def test_torchrun_is_refused_and_the_suggested_command_makes_one_job(place):
    code, out, err = torchrun(place, 2, TRAIN.format(layer="byteps.torch").replace("bps.init()\n", INIT_TOGETHER))
    assert code != 0 and " of " not in out, out + err
    for rank in (0, 1):
        assert f"torchrun has started 2 processes of this program (RANK={rank}, WORLD_SIZE=2)" in err, err
    options, program = suggested(err)
    assert options[:3] == ["--local", "--workers", "2"] and program[0].startswith("python") and program[1] == "-u"
    command = [sys.executable, "-m", "byteps.launcher", *options, sys.executable, *program[1:]]
    code, out, err = run(place, command)
    lines = sorted(line.split("] ", 1)[-1].strip() for line in out.splitlines())
    assert code == 0 and [line[-6:] for line in lines] == ["0 of 2", "1 of 2"], out + err


def test_under_torchrun_a_group_byteps_makes_the_job_that_init_then_uses(place):
    code, out, err = torchrun(
        place,
        2,
        """
        dist.init_process_group("byteps")
        import byteps.torch as bps
        bps.init()
        print(f"{bps.rank()} of {bps.size()} {bps.allreduce(torch.ones(1), op=bps.Sum).item()}\\n", end="", flush=True)
        bps.barrier()
        """,
        forked=True,
    )
    assert code == 0 and sorted(out.split("\n")) == ["", "0 of 2 2.0", "1 of 2 2.0"], out + err


def test_under_torchrun_a_group_byteps_of_one_is_alone(place):
    code, out, err = torchrun(
        place,
        2,
        """
        dist.init_process_group("gloo")
        mine = [dist.new_group([rank], backend="byteps") for rank in range(2)][dist.get_rank()]
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=mine)
        print(f"{dist.get_rank()} {tensor.item()}\\n", end="", flush=True)
        """,
        forked=True,
    )
    assert code == 0 and sorted(out.split("\n")) == ["", "0 1.0", "1 1.0"], out + err


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_mpirun_is_refused(place):
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    words += [sys.executable, script_of(place, "byteps.torch")]
    code, out, err = run(place, words)
    assert code != 0 and " of 1" not in out and "mpirun has started 2 processes" in err, out + err
    assert suggested(err)[0][:3] == ["--local", "--workers", "2"]


def test_horovods_launcher_is_refused_and_an_explicit_job_wins(place):
    words = [sys.executable, script_of(place, "byteps.torch")]
    horovod = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}
    code, out, err = run(place, words, horovod)
    assert code == 1 and "in place of horovodrun: bpslaunch --local --workers 2 -- " in err, out + err
    assert run(place, words, {**horovod, "DMLC_NUM_WORKER": "1"})[:2] == (0, "0 of 1\n")


def test_bpslaunch_within_a_task_of_srun_starts_its_job(place):
    place.environ.update(recorded("slurm-22.05-step"))
    command = [sys.executable, "-m", "byteps.launcher", "--local", "--workers", "2", "--no-prefix", "--"]
    code, out, err = run(place, [*command, sys.executable, "-u", script_of(place, "byteps.torch")])
    assert code == 0 and sorted(out.splitlines()) == ["0 of 2", "1 of 2"], out + err
