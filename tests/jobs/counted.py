"""Reading a job's counters in tests, whoever sums there (BYTEPS_TEST_SUMMING)."""


def pushed_and_pulled(metrics):
    """Bytes that this worker itself exchanged: with servers, or with the relays of its machine."""
    if metrics.local_pushed_bytes or metrics.local_pulled_bytes:
        return metrics.local_pushed_bytes, metrics.local_pulled_bytes
    return metrics.pushed_bytes, metrics.pulled_bytes
