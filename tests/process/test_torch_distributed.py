"""torch.distributed with the backend "byteps" in whole programs, as users start them: torchrun, spawned processes,
bpslaunch. Nothing is imported from byteps unless a test says so; torch finds the backend by its entry point."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hosts import Network
from place import ROOT, Place, wait_until
from zygote import fork_servers

torch = pytest.importorskip("torch")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of the package's metadata."""
    folder = tmp_path_factory.mktemp("installed")
    metadata = folder / "byteps-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: byteps\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(entry_points())
    return folder


@pytest.fixture
def place(tmp_path, installed):
    """With the package's metadata on the path, as an installation has it."""
    place = Place(tmp_path)
    path = [str(ROOT / "python"), str(installed)]
    place.environ.update(PYTHONPATH=os.pathsep.join(path), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    place.forked = fork_servers.get(sys.executable, ["torch"], place.environ).command()
    yield place
    place.close()


def entry_points():
    """The group torch.backends of pyproject.toml, as the wheel has it."""
    text = (ROOT / "pyproject.toml").read_text()
    _, found, rest = text.partition('[project.entry-points."torch.backends"]')
    assert found
    name, value = rest.split("\n")[1].replace('"', "").split(" = ")
    return f"[torch.backends]\n{name} = {value}\n"


PRELUDE = """
import os, signal, sys, time
import torch, torch.distributed as dist

def init(store="store"):
    where = dict(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("byteps", init_method="file://" + os.path.abspath(store), **where)
"""


def script(place, body):
    path = Path(place.folder) / "train.py"
    path.write_text(PRELUDE + textwrap.dedent(body))
    return path


def torchrun(place, processes, body, *arguments, forked=False):
    """Runs it to its end: exit code, standard output, standard error. `forked`: torch is not imported anew."""
    words = [f"--nproc-per-node={processes}", "--standalone", *arguments]
    if forked:
        program = ["--no-python", *place.forked, script(place, body)]
        process = place.start([*place.forked, *TORCHRUN[1:], *words, *program])
    else:
        process = place.start([*TORCHRUN, *words, script(place, body)])
    out, err = process.communicate(timeout=90)
    return process.returncode, out, err


def ranks(place, count, body):
    """The same without torchrun (quicker): processes that call init(), where they meet in a file. They are forked where
    torch has been imported (tests/jobs/zygote.py)."""
    path = script(place, body)
    environs = [{"RANK": str(rank), "WORLD_SIZE": str(count)} for rank in range(count)]
    processes = [place.start([*place.forked, path], environ) for environ in environs]
    ended = [process.communicate(timeout=60) for process in processes]
    return [process.returncode for process in processes], "".join(out for out, _ in ended), "".join(
        err for _, err in ended
    )


def all_ended(place, wait_s=15):
    """Whether every process of the test comes to its end, servers included."""
    return wait_until(lambda: not place.living(), wait_s)


def test_torchrun_needs_nothing_else(place):
    code, out, err = torchrun(
        place,
        2,
        """
        assert "byteps" in dist.Backend.backend_list and "byteps.torch" not in sys.modules
        dist.init_process_group("byteps")
        tensor = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(tensor)
        assert "torch._dynamo" not in sys.modules  # its import takes longer than all of this
        print(f"sum {tensor.item()} of {dist.get_world_size()} with {dist.get_backend()}", flush=True)
        dist.destroy_process_group()
        """,
    )
    assert code == 0, err
    assert out.count("sum 3.0 of 2 with byteps") == 2
    assert all_ended(place) and place.recordings() == []


def test_torchrun_restarts_a_job_that_failed(place):
    code, out, err = torchrun(
        place,
        2,
        """
        dist.init_process_group("byteps")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            raise SystemExit(3)
        dist.barrier()
        print(f"done {tensor.item()}", flush=True)
        """,
        "--max-restarts=1",
        forked=True,
    )
    assert code == 0, err
    assert out.count("done 2.0") == 2
    assert all_ended(place)


def test_programs_that_just_end_leave_nothing(place):
    codes, out, err = ranks(
        place,
        2,
        """
        init()
        dist.barrier()
        if dist.get_rank() == 0:  # which runs the servers
            import atexit
            atexit.register(lambda: open("ending", "w").close())
        else:
            while not os.path.exists("ending"):
                time.sleep(0.01)
            print("late", flush=True)
        """,
    )
    assert codes == [0, 0], err
    assert "late" in out
    assert all_ended(place) and place.recordings() == []


def test_a_member_that_dies_ends_the_others_with_its_name(place):
    codes, _, err = ranks(
        place,
        2,
        """
        init()
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
        """,
    )
    assert codes == [1, -signal.SIGKILL]
    assert "DisconnectedError" in err and "all_reduce" in err and "worker 1" in err
    assert all_ended(place)


def test_servers_end_when_the_member_that_started_them_is_killed(place):
    codes, _, err = ranks(
        place,
        2,
        """
        init()
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
        """,
    )
    assert codes == [-signal.SIGKILL, 1]
    assert "worker 0" in err
    assert all_ended(place)


def test_groups_may_be_destroyed_and_made_again(place):
    codes, out, err = ranks(
        place,
        2,
        """
        from byteps.torch.backend import colocated

        os.environ["BYTEPS_LOCAL_REDUCE"] = "0"  # with relays some of the connections may still be on their way
        kept = []
        for turn in range(3):
            init(f"store{turn}")  # when all have left torch removes the file, even one that is in use again
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            kept.append((len(os.listdir("/proc/self/fd")), len(colocated._services)))
            dist.destroy_process_group()
            for process in colocated._services:
                process.wait(20)
        assert kept[1] == kept[2] and kept[2][1] == (2 if os.environ["RANK"] == "0" else 0), kept
        print("again", tensor.item(), flush=True)
        """,
    )
    assert codes == [0, 0], err
    assert out.count("again 2.0") == 2
    assert all_ended(place)


def test_each_machine_has_a_server(place):
    """Two machines, played by a name that each rank gives itself."""
    codes, out, err = ranks(
        place,
        3,
        """
        from byteps._core import session
        from byteps.torch.backend import colocated
        colocated.machine_name = lambda: f"machine {int(os.environ['RANK']) // 2}"
        colocated.own_address = lambda environ: "127.0.0.1"
        init()
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        job = session.job()
        print(f"rank {job.rank} local {job.local_rank} of {job.local_size}, {job.server_count} servers,"
              f" {len(colocated._services)} started, sum {tensor[999].item()}", flush=True)
        """,
    )
    assert codes == [0, 0, 0], err
    assert "rank 0 local 0 of 2, 2 servers, 2 started, sum 3.0" in out
    assert "rank 1 local 1 of 2, 2 servers, 0 started, sum 3.0" in out
    assert "rank 2 local 0 of 1, 2 servers, 1 started, sum 3.0" in out
    assert all_ended(place)


TWO_MACHINES = """
from byteps._core import session
from byteps.torch.backend import colocated

def sent():  # by the machine's card
    with open("/proc/net/dev") as file:
        cards = [line.split(":") for line in file if ":" in line]
    return sum(int(counts.split()[8]) for name, counts in cards if name.strip() != "lo")

dist.init_process_group("byteps")
dist.all_reduce(torch.ones(1000))
dist.barrier()
before = sent()
tensor = torch.full([8 << 20], float(dist.get_rank()))
dist.all_reduce(tensor)
dist.barrier()
copies = (sent() - before) / tensor.nbytes
job = session.job()
print(f"rank {job.rank} local {job.local_rank} of {job.local_size}, {job.server_count} servers,"
      f" {len(colocated._services)} started, sum {tensor.sum().item() / tensor.numel()},"
      f" {copies:.2f} copies\\n", end="")
"""


def test_torchrun_on_two_machines_has_a_server_on_each_and_their_ranks_sum_first(place):
    """Without relays each card would send two copies: half of one for each rank of its machine as what it contributes
    to the other's server, and half of one as the answer to each rank there."""
    path = script(place, TWO_MACHINES)
    with Network(2) as network:
        where = ["--nnodes=2", "--nproc-per-node=2", f"--master-addr={network.address(0)}", "--master-port=29500"]
        nodes = [
            place.start([*network.on(node), *TORCHRUN, *where, f"--node-rank={node}", path]) for node in range(2)
        ]
        ended = [node.communicate(timeout=120) for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], ended
        assert all_ended(place), place.living()
    lines = sorted(line.rpartition(", ") for out, _ in ended for line in out.splitlines() if line.startswith("rank "))
    assert [line for line, _, _ in lines] == [
        "rank 0 local 0 of 2, 2 servers, 2 started, sum 6.0",  # the scheduler as well
        "rank 1 local 1 of 2, 2 servers, 0 started, sum 6.0",
        "rank 2 local 0 of 2, 2 servers, 1 started, sum 6.0",
        "rank 3 local 1 of 2, 2 servers, 0 started, sum 6.0",
    ], ended
    copies = [float(last.split()[0]) for _, _, last in lines]
    assert all(0.9 < each < 1.4 for each in copies), copies


def test_one_machine_has_no_server_but_for_who_asks_for_one(place):
    codes, out, err = ranks(
        place,
        2,
        """
        from byteps._core import session
        from byteps.torch.backend import colocated
        for forced in ("0", "1"):
            os.environ["BYTEPS_FORCE_DISTRIBUTED"] = forced
            init(f"store{forced}")  # a file of its own, as above
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            roles = sorted(process.args[0].rpartition("_")[2] for process in colocated._services)
            print(f"{session.job().server_count} servers, started {roles}, sum {tensor.item()}", flush=True)
            dist.destroy_process_group()
            for process in colocated._services:
                process.wait(20)
        """,
    )
    assert codes == [0, 0], err
    assert sorted(out.splitlines()) == [
        "0 servers, started ['scheduler'], sum 2.0",
        "0 servers, started [], sum 2.0",
        "1 servers, started ['scheduler', 'server'], sum 2.0",
        "1 servers, started [], sum 2.0",
    ]
    assert "not used" not in err and all_ended(place)


def test_bpslaunch_runs_a_program_of_torch_as_it_is_and_a_group_shares_the_job_of_byteps_torch(place):
    path = script(
        place,
        """
        dist.init_process_group("byteps")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        import byteps.torch as bps
        bps.init()
        bps.init_process_group()
        shared = torch.tensor([bps.rank() + 1.0])
        dist.all_reduce(shared)
        dist.destroy_process_group()
        again = bps.push_pull(torch.ones(1), average=False, name="again")  # the job is still there
        print("sums", tensor.item(), shared.item(), again.item(), flush=True)
        """,
    )
    code, out, err = place.run(*"--local --servers 1 -x BYTEPS_FORCE_DISTRIBUTED=1 --".split(), sys.executable, path)
    assert code == 0, err
    assert out.count("sums 2.0 3.0 2.0") == 2
    assert all_ended(place)


def test_members_that_stand_differently_all_get_the_reason(place):
    codes, _, err = ranks(
        place,
        2,
        """
        if os.environ["RANK"] == "1":
            os.environ["BYTEPS_ENGINE"] = "none"
            import byteps.torch as bps
            bps.init()
        init()
        """,
    )
    assert codes == [1, 1]
    assert err.count("the members of this group differ: rank 0 has no job; rank 1 has joined a job") == 2


def test_a_callback_that_runs_when_the_process_ends_is_waited_for(place):
    codes, out, err = ranks(
        place,
        2,
        """
        import atexit, threading
        init()
        begun, ending = threading.Event(), threading.Event()

        def callback(future):
            begun.set()
            ending.wait()
            time.sleep(0.5)  # it computes
            print("called back", flush=True)
            return future.value()

        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.wait(["attached"])  # a future that has ended would run the callback in this very thread
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        if dist.get_rank() == 0:
            future.then(callback)
            store.set("attached", "1")
            atexit.register(ending.set)
            begun.wait()
        future.wait()
        """,
    )
    assert codes == [0, 0], err  # or -6: the end of the interpreter unwound a thread within torch's C++
    assert out.count("called back") == 1


def test_servers_that_cannot_be_started_are_told_to_all(place):
    place.environ["BYTEPS_BIN"] = str(place.folder)
    codes, _, err = ranks(place, 2, "init()")
    assert codes == [1, 1]
    assert err.count("the scheduler of the job cannot be started: byteps_scheduler was not found") >= 2


def test_ctrl_c_ends_a_wait(place):
    place.environ.update(WORLD_SIZE="2")
    path = script(
        place,
        """
        init()
        dist.barrier()
        if dist.get_rank() == 1:
            sys.stdin.read()
            os._exit(0)
        try:
            print("waits", flush=True)
            dist.all_reduce(torch.ones(1))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(0)
        """,
    )
    first = place.start([sys.executable, path], {"RANK": "0"})
    second = place.start([sys.executable, path], {"RANK": "1"}, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "waits\n"
    first.send_signal(signal.SIGINT)
    assert first.communicate(timeout=20)[0] == "interrupted\n"
    second.communicate("", timeout=20)
    assert all_ended(place)
