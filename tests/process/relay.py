"""Something between the processes of a job that damages what passes: a relay of TCP connections that turns bits over.

    with Relays(job.port, mean_bytes=50000, seed=1) as relays:
        job.start_server({"DMLC_PS_ROOT_PORT": str(relays.scheduler_port)})

The servers reach the scheduler through it. Their Join names the ports of their shards; the relay puts ports of its own
in their place, so that workers come through it too. (It could not if Joins were secret or signed.)
"""

import random
import socket
import threading
from typing import List, Optional

import wire


class Relay:
    """Listens, and passes each connection on to a port of this machine."""

    def __init__(self, relays: "Relays", port: int, is_scheduler: bool) -> None:
        self.relays, self.target, self.is_scheduler = relays, port, is_scheduler
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.relays.ends += [near, far]
            self.relays.connections += 1
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink, source is near), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_outward: bool) -> None:
        try:
            peer = wire.Connection.around(source)
            for kind in (wire.HELLO, wire.PROOF):  # damaged, these are refused with as many reasons as they have fields
                sink.sendall(peer.record(kind))
            if self.is_scheduler and is_outward:
                sink.sendall(self._first_message(peer))
            while True:
                chunk = source.recv(65536)
                if not chunk:
                    break
                sink.sendall(chunk if self.is_scheduler else self.relays.damage(chunk, is_outward))
        except (OSError, wire.Refused):
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _first_message(self, peer: wire.Connection) -> bytes:
        """A Join of other ports."""
        message = peer.receive()
        payload = message.payload
        if message.kind == wire.JOIN:
            for place in wire.list_of(wire.fields(payload)[6]):
                payload = payload.replace(wire.number(2, place[2]), wire.number(2, self.relays.port_for(place[2])))
        return wire.frame(message.head(), payload)


class Relays:
    """All relays of a job. A bit in about `mean_bytes` is turned over in each direction between workers and shards;
    None: never. Both can be set while the job runs."""

    def __init__(self, scheduler_port: int, mean_bytes: Optional[int], seed: int) -> None:
        self.prng = random.Random(seed)
        self.lock = threading.Lock()
        self.mean_bytes = {True: mean_bytes, False: mean_bytes}  # by whether it is on its way to a shard
        self.flips = self.connections = 0
        self.ends: List[socket.socket] = []
        self.shards = {}
        self.scheduler = Relay(self, scheduler_port, True)
        self.scheduler_port = self.scheduler.port

    def port_for(self, port: int) -> int:
        with self.lock:
            if port not in self.shards:
                self.shards[port] = Relay(self, port, False)
            return self.shards[port].port

    def damage(self, chunk: bytes, is_outward: bool) -> bytes:
        mean = self.mean_bytes[is_outward]
        if mean is None:
            return chunk
        with self.lock:
            at = int(self.prng.expovariate(1 / mean))
            if at >= len(chunk):
                return chunk
            self.flips += 1
            changed = bytearray(chunk)
            changed[at] ^= 1 << self.prng.randrange(8)
            return bytes(changed)

    def __enter__(self) -> "Relays":
        return self

    def __exit__(self, *_: object) -> None:
        for relay in (self.scheduler, *self.shards.values()):
            relay.listener.close()
        for end in self.ends:
            end.close()
