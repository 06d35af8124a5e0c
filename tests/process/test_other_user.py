"""A job without a job key on a machine with other users: they reach its ports, and get nowhere."""

import os

import pytest
import wire
from evil import listening_ports
from job import Job

NOBODY = 65534


def as_another_user(call):
    """What it returns in a process of another user, as text."""
    "localhost".encode("idna")  # which create_connection() wants, loaded from files that the other may not read
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            text = call()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read().decode()
    os.waitpid(child, 0)
    return text


def knock(port):
    """Comes to that port as rank 0 of the first epoch, who is there already."""
    try:
        with wire.Connection("127.0.0.1", port) as peer:
            peer.shake_hands(wire.hello(wire.WORKER, rank=0, epoch=1), b"")
            return "let in"
    except wire.Refused as refusal:
        return f"refused: {refusal}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_is_refused_at_every_port_of_a_job_without_a_key(tmp_path):
    with Job(tmp_path, workers=2, servers=1, environ={"BYTEPS_JOB_KEY": ""}) as job:
        job.start({"*": [["loop"]]})
        job.wait_for("looping")
        ports = [port for process in (job.scheduler, *job.servers) for port in listening_ports(process.pid)]
        assert len(ports) >= 2
        for port in ports:
            answer = as_another_user(lambda port=port: knock(port))
            assert "refused: " in answer and f"another user of this machine (uid {NOBODY}, not 0)" in answer
            assert "BYTEPS_JOB_KEY_FILE" in answer
        assert not any(worker.failures for worker in job.workers)  # nobody's place was taken
        assert knock(job.port) == "let in"  # as ourselves
    assert "refused a connection" in job.scheduler.err
