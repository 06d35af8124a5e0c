"""A group of processes that stands ready and, when it is its turn, does one round."""

import os
import select
import time

START_S = 60  # for a group to get ready


class ContenderError(RuntimeError):
    pass


class Group:
    """Workers, and what stands behind them. A turn is a line to each worker, and a line from each."""

    rival = True
    rounds = ("go", "communicate", "small")  # what a rival can be told
    optional = False  # whether a build may be unable to do this

    def __init__(self, label):
        self.label = self.kind = label  # one kind, whatever its build and its settings, has one limit
        self.workers, self.others = [], []
        self._resting_bytes = {}

    def words(self, scenario):
        """What a turn of this group can be told, and the label of that figure: "go" is the group's own."""
        words = [word for word in scenario.words if not self.rival or word in self.rounds]
        return [(word, " ".join([self.label, word.removeprefix("go").strip()]).strip()) for word in words]

    def start(self, lab, scenario):
        raise NotImplementedError

    def await_ready(self):
        for process, line in zip(self.workers, self._lines(START_S)):
            if line != ["ready"]:
                raise ContenderError(f"{self.label}: {process.argv} said {line} instead of ready")

    def note_memory(self):
        """What its processes hold before the first turn, with their rings: memory_growth() is what they take beyond."""
        self._resting_bytes = {process: memory_bytes(process.pid, "VmRSS") for process in self.workers + self.others}

    def turn(self, timeout_s, word="go"):
        """One round: seconds from the first start to the last end, from the last start, and to the first layer's sum,
        also of the slowest worker from its own start; CPU seconds of the workers within it and of the others around
        it; and what else each worker has said."""
        before = [process.cpu_seconds() for process in self.others]
        for process in self.workers:
            process.input.write(word.encode() + b"\n")
            process.input.flush()
        lines = [[float(text) for text in words] for words in self._lines(timeout_s)]
        after = [process.cpu_seconds() for process in self.others]
        starts, ends, firsts, cpu, *more = zip(*lines)
        return {
            **dict(zip(("pushed_bytes", "pushed_frames", "wanted_messages"), more)),
            "seconds": max(ends) - min(starts),
            "from_last_start_s": max(ends) - max(starts),
            "first_s": max(firsts) - min(starts),
            "own_first_s": max(first - start for first, start in zip(firsts, starts)),
            "worker_cpu_s": sum(cpu),
            "server_cpu_s": sum(after) - sum(before),
        }

    def memory_growth(self, processes):
        """Bytes by which the largest of them has ever grown since it was ready."""
        growth = [memory_bytes(p.pid, "VmHWM") - self._resting_bytes.get(p, 0) for p in processes]
        return max(growth, default=0)

    def idle_share(self, seconds):
        """The busiest process of the group, in shares of a core, while nobody has a turn."""
        everyone = self.workers + self.others
        before = [process.cpu_seconds() for process in everyone]
        time.sleep(seconds)
        return max(p.cpu_seconds() - was for p, was in zip(everyone, before)) / seconds

    def stop(self):
        """Workers leave at the end of their input; who does not is ended with the lab."""
        for process in self.workers:
            process.input.close()
        until = time.monotonic() + 5
        for process in self.workers + self.others:
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)

    def _lines(self, timeout_s):
        """A line of each worker, in words."""
        until = time.monotonic() + timeout_s
        lines = [b""] * len(self.workers)
        waiting = {process.output.fileno(): i for i, process in enumerate(self.workers)}
        while waiting:
            readable, _, _ = select.select(list(waiting), [], [], 1.0)
            for process in self.others:
                if process.poll() is not None:
                    raise ContenderError(self._why(process))
            if not readable and time.monotonic() > until:
                late = f"{self.label}: {len(waiting)} workers did not finish within {timeout_s:.0f} s"
                raise ContenderError("\n".join([late, *self._complaints()]))
            for fd in readable:
                data = os.read(fd, 4096)
                if not data:
                    raise ContenderError(self._why(self.workers[waiting[fd]]))
                lines[waiting[fd]] += data
                if data.endswith(b"\n"):
                    del waiting[fd]
        return [line.decode().split() for line in lines]

    def _why(self, process):
        time.sleep(0.5)  # the others may have more to say
        ended = f"{self.label}: {process.argv[-1]} ended with exit code {process.poll()}"
        return "\n".join([ended, *self._complaints()])

    def _complaints(self):
        """The end of what its processes wrote to standard error."""
        texts = [(process.argv, process.errors(500).strip()) for process in self.workers + self.others]
        return [f"{' '.join(argv)}\n    {text}" for argv, text in texts if text]


def memory_bytes(pid, field):
    """VmRSS or VmHWM of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":")), 0)
    except OSError:
        return 0
