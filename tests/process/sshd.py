"""Other hosts for tests: a real sshd on loopback, reached as 127.0.0.1 and 127.0.0.2, and a stand-in for ssh."""

import getpass
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from place import MARK, free_port, wait_until

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
SetEnv {mark}={value} TMPDIR={temporary}
"""

# Runs its last argument here, as ssh would elsewhere. A host is gone whose name is in the file GONE.
STAND_IN = """\
#!/bin/sh
for word; do host=$command command=$word; done
for word; do [ "$word" = "$command" ] || host=$word; done
if grep -qx "$host" "{folder}/gone" 2>/dev/null; then echo "ssh: $host: No route to host" >&2; exit 255; fi
exec sh -c "$command"
"""


class Sshd:
    def __init__(self, place):
        if SSHD is None or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
            pytest.skip("there is no sshd here: apt-get install openssh-server (tools/setup does)")
        self.folder = place.folder / "ssh"
        self.folder.mkdir(mode=0o700)
        for name in ("host_key", "user_key"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(keygen, check=True)
        self.port = free_port()
        config = self.folder / "sshd_config"
        config.write_text(CONFIG.format(port=self.port, folder=self.folder, mark=MARK, value=place.mark,
                                        temporary=place.temporary))
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd wants it when root runs it
        self.log = self.folder / "log"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BYTEPS_")}
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stderr=open(self.log, "wb"), stdin=subprocess.DEVNULL, env=environ
        )
        assert wait_until(lambda: b"Server listening on 127.0.0.2" in self.log.read_bytes(), 10), self.log.read_text()
        options = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={self.folder}/known -o LogLevel=ERROR"
        self.command = f"ssh -p {self.port} -i {self.folder}/user_key -F none {options} -l {getpass.getuser()}"

    def sessions(self):
        """Process ids of the sshd processes that serve a connection."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid:
                found.append(int(entry))
        return found

    def close(self):
        for pid in self.sessions():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()


@pytest.fixture
def sshd(place):
    running = Sshd(place)
    yield running
    running.close()


@pytest.fixture
def stand_in(place):
    """The command of a stand-in for ssh."""
    script = place.folder / "stand_in_for_ssh"
    script.write_text(STAND_IN.format(folder=place.folder))
    script.chmod(0o755)
    return str(script)
