"""What the cards allow: seconds for one sum of `size` bytes, whatever the software does.

Where a machine has several ranks, a worker is the machine to servers (its ranks can sum first, so that one copy
crosses its card), and a rank to the ring: each machine's card carries what one rank sends on, and what one gets."""

PAYLOAD = 1448 / 1514  # of a shaped rate: what TCP over IPv4 with time stamps carries at an MTU of 1500


def ring(workers, size, rate):
    """All-reduce on the workers' own machines: every card carries 2(n-1)/n of the bytes each way."""
    return 2 * (workers - 1) / workers * size / rate


def servers(workers, extra, colocated, size, rate):
    """Servers on `extra` machines of their own, and on the workers' machines as well when `colocated`, each with the
    share that lets all cards finish together (OSDI'20, section 4.1)."""
    n, k = workers, extra
    if not colocated:
        return max(1.0, n / k) * size / rate
    if k >= n:
        return size / rate
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k) * size / rate


def unequal_servers(workers, size, worker_rate, server_rates):
    """Servers on machines of their own, each with a share in proportion to its card."""
    return max(size / worker_rate, workers * size / sum(server_rates))
