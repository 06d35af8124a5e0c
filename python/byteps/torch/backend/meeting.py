"""How the members of a new group talk before they have a job: through the store that torch gives them.

Every step is taken by all members; one that fails is told to all, and all raise.

A store may hold what an earlier group of the same name wrote: torchrun keeps it when it restarts a job, and a program
may destroy its group and make it anew. So each member first draws a number, shows it, and then shows which numbers
it has seen of all; they agree when all have seen the same. Each list has a number in it that is new in this meeting,
so an old list never agrees. The agreed numbers are part of all keys that follow.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional

from byteps._core import errors

_LOOK_AGAIN_S = 0.01
_DEFAULT_TIMEOUT_S = 300.0


class Meeting:
    """`store` is the group's own. `name` is new for each meeting and equal on all members."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Optional[timedelta] = None) -> None:
        self._store = store
        self.rank = rank
        self.size = size
        self.name = ""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._agree(seconds if seconds > 0 else _DEFAULT_TIMEOUT_S)

    def _agree(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._store.set(f"byteps/number/{self.rank}", secrets.token_hex(8))
        while True:
            numbers = self._all("byteps/number")
            seen = " ".join(numbers)
            self._store.set(f"byteps/seen/{self.rank}", seen)
            if all(other == seen for other in self._all("byteps/seen")):
                self.name = hashlib.sha256(seen.encode()).hexdigest()[:16]
                return
            if time.monotonic() > deadline_s:
                raise errors.TimedOutError("the members of the group have not all come: see the others' output")
            time.sleep(_LOOK_AGAIN_S)

    def _all(self, key: str) -> List[str]:
        return [self._store.get(f"{key}/{member}").decode() for member in range(self.size)]

    def tell(self, subject: str, value: Any, act: Optional[Callable[[], None]] = None) -> List[Any]:
        """Runs `act`, says `value`; what each member said, by rank."""
        self._say(subject, lambda: (act() if act is not None else None, value)[1])
        return [self._hear(subject, member) for member in range(self.size)]

    def tell_from(self, root: int, subject: str, make: Callable[[], Any]) -> Any:
        """What make() returned on `root`, which alone calls it."""
        if self.rank == root:
            self._say(subject, make)
        return self._hear(subject, root)

    def _say(self, subject: str, make: Callable[[], Any]) -> None:
        message: Dict[str, Any]
        try:
            message = {"value": make()}
        except Exception as error:
            message = {"error": str(error), "code": getattr(error, "code", errors.SystemRefusedError.code)}
        self._store.set(f"byteps/{self.name}/{subject}/{self.rank}", json.dumps(message))

    def _hear(self, subject: str, member: int) -> Any:
        message = json.loads(self._store.get(f"byteps/{self.name}/{subject}/{member}"))
        if "error" in message:
            raise errors.from_code(int(message["code"]), f"rank {member}: {message['error']}")
        return message["value"]
