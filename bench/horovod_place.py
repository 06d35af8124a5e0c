"""What horovodrun would start and tell: the server where ranks find each other is rank 0's, each rank is a host of its
own."""

from __future__ import annotations

import os
import socket
import threading
import time


def joined(place):
    """horovod.torch, which its caller initializes. place: rank, size, address, port and interface, all text."""
    rank, size, address, port, interface = place
    if rank == "0":
        _serve(address, int(port), int(size))
    os.environ.update(
        HOROVOD_HOSTNAME=_host(rank),
        HOROVOD_RANK=rank,
        HOROVOD_SIZE=size,
        HOROVOD_LOCAL_RANK="0",
        HOROVOD_LOCAL_SIZE="1",
        HOROVOD_CROSS_RANK=rank,
        HOROVOD_CROSS_SIZE=size,
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_RENDEZVOUS_ADDR=address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=port,
        HOROVOD_GLOO_IFACE=interface,
    )
    import horovod.torch as hvd

    _await_server(address, int(port))
    return hvd


def _host(rank):
    return f"host{rank}"


def _serve(address, port, size):
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
    server.init([SlotInfo(_host(rank), rank, 0, rank, size, 1, size) for rank in range(size)])
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _await_server(address, port):
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((address, port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
