"""The job key of the jobs that bpslaunch starts.

Processes get it as a file in memory that belongs to the launching process: other users may not open it, it never is on
a disk, it ends with the launcher, and a program that prints or uploads its environment, as trackers of experiments do,
gives away a path that says nothing. Processes started by a worker can read it too, which an inherited descriptor would
not give them: Python closes those.
"""

from __future__ import annotations

import os
import secrets
from typing import Mapping, Optional

from byteps.launcher.environment import BadEnvironment

KEY_BYTES_MIN = 16  # as in src/app/env.cc
MAKE_KEY = "(umask 077; openssl rand -hex 16 > job.key)"


class JobKey:
    def __init__(self, text: Optional[str] = None):
        """A fresh key, or one that came from elsewhere."""
        self.text = secrets.token_hex(32) if text is None else text
        self._file = os.memfd_create("byteps job key")
        os.fchmod(self._file, 0o600)
        os.write(self._file, self.text.encode(errors="surrogateescape") + b"\n")

    @property
    def path(self) -> str:
        """For BYTEPS_JOB_KEY_FILE; valid until close()."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        os.close(self._file)


def given_key(environ: Mapping[str, str]) -> Optional[str]:
    """BYTEPS_JOB_KEY or the first line of BYTEPS_JOB_KEY_FILE; None when neither is set."""
    text = environ.get("BYTEPS_JOB_KEY", "")
    path = environ.get("BYTEPS_JOB_KEY_FILE", "")
    if not text and path:
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                text = file.readline().rstrip("\n")
        except OSError as error:
            raise BadEnvironment(f"BYTEPS_JOB_KEY_FILE='{path}' cannot be read: {error.strerror}") from None
        if not text:
            raise BadEnvironment(f"BYTEPS_JOB_KEY_FILE='{path}' is empty: make a key with {MAKE_KEY}")
    if not text:
        return None
    if len(text.encode(errors="surrogateescape")) < KEY_BYTES_MIN:
        raise BadEnvironment(
            f"the job key (BYTEPS_JOB_KEY or BYTEPS_JOB_KEY_FILE) is too short: it needs at least {KEY_BYTES_MIN} "
            f"bytes; make one with {MAKE_KEY}"
        )
    return text
