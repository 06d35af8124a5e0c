"""onebit, topk, randomk and dithering in numpy: a dull model of src/kernels/part_coding.h, of which it has nothing but
the formulas. A `Codec` is one part at one rank: code() gives what its numbers are decoded to, and for randomk values()
what is sent."""

import numpy as np

F = np.float32
MASK = 2**64 - 1


class Xorshift:
    """xorshift128+ from the state {seed, seed}."""

    def __init__(self, seed):
        self.a = self.b = seed

    def next(self):
        t, s = self.a, self.b
        self.a = s
        t = (t ^ t << 23) & MASK
        t ^= t >> 17
        t ^= s ^ s >> 26
        self.b = t
        return t + s & MASK


def mix(z):
    """The last steps of splitmix64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


class Counted:
    """Numbers without a seed: splitmix64 from a hash of where and when."""

    STEP = 0x9E3779B97F4A7C15

    def __init__(self, key, part, round, rank):
        hashed = mix(mix(key + self.STEP & MASK) ^ (part << 32 | round))
        self.state = mix(hashed + self.STEP * rank & MASK)

    def next(self):
        self.state = self.state + self.STEP & MASK
        return mix(self.state)


def next_power_of_two(number):
    return 0 if number == 0 else 1 << (number - 1).bit_length()


class Codec:
    def __init__(self, kind, k=0, seed=None, scaling=False, natural=False, l2=False, ef=False, mu=None, where=None):
        self.kind, self.k, self.seed, self.scaling, self.natural, self.l2 = kind, k, seed, scaling, natural, l2
        self.ef, self.mu, self.where = ef, mu, where
        self.stream = None if seed is None else Xorshift(seed)
        self.round, self.residual, self.momentum, self.rate = 0, None, None, None

    def count(self, n):
        most = n // 2 if self.kind == "topk" else n
        return max(1, min(int(self.k * n) if self.k < 1 else int(self.k), most))

    def code(self, gradient, rate=None):
        x = gradient.astype(F).copy()
        if self.mu is not None:
            before = np.zeros_like(x) if self.momentum is None else self.momentum
            self.momentum = F(self.mu) * before + x
            x = x + F(self.mu) * self.momentum
        if self.ef and self.residual is not None:
            ratio = F(self.rate / rate) if rate and self.rate else F(1)
            x = x + self.residual * ratio
        self.rate = rate or self.rate
        if self.seed is None:
            key, part, rank = self.where
            self.stream = Counted(key, part, self.round, 0 if self.kind == "randomk" else rank)
        self.round += 1
        decoded = getattr(self, self.kind)(x)
        if self.ef:
            self.residual = np.where(self.sent, F(0), x) if self.kind in ("topk", "randomk") else x - decoded
        return decoded

    def onebit(self, x):
        scale = F(np.abs(x).astype(np.float64).sum() / len(x)) if self.scaling else F(1)
        return np.where(x < 0, -scale, scale)

    def topk(self, x):
        # A stable sort: of equal magnitudes the first comes first.
        chosen = np.argsort(-np.abs(x), kind="stable")[: self.count(len(x))]
        return self.only(x, chosen)

    def randomk(self, x):
        self.places = [self.stream.next() % len(x) for _ in range(self.count(len(x)))]
        return self.only(x, self.places)

    def only(self, x, places):
        self.sent = np.zeros(len(x), bool)
        self.sent[places] = True
        return np.where(self.sent, x, F(0))

    def values(self, x):
        """Of the last round."""
        return x[self.places]

    def dithering(self, x):
        scale = F(np.sqrt((x.astype(np.float64) ** 2).sum())) if self.l2 else np.abs(x).max()
        draws = [self.stream.next() for _ in range(len(x))]
        if scale == 0:
            return np.zeros_like(x)
        steps = F(2 ** (self.k - 1)) if self.natural else F(self.k)
        y = np.abs(x) / scale * steps
        if self.natural:
            low = np.array([next_power_of_two(int(c)) // 2 for c in np.ceil(y)], F)
            length = np.maximum(low, F(1))
        else:
            low, length = np.floor(y), F(1)
        chance = (y - low) / length
        up = np.array([float(draw) for draw in draws]) < chance.astype(np.float64) * 2.0**64
        q = low + length * up.astype(F)
        return np.where(np.signbit(x), -q, q) * scale / steps
