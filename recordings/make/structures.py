"""Builds and drops large structures, as a program with a heavy start and quieter phases does."""

import gc


class Node:
    __slots__ = ("left", "right", "value")

    def __init__(self, value, depth):
        self.value = value
        self.left = Node(2 * value, depth - 1) if depth else None
        self.right = Node(2 * value + 1, depth - 1) if depth else None

    def total(self):
        return self.value + sum(child.total() for child in (self.left, self.right) if child)


def numbers():
    squares = [n * n for n in range(900_000)]
    odd = [n for n in squares if n % 2]
    return sum(odd)


def words():
    index = {}
    for n in range(300_000):
        index.setdefault(f"word-{n % 50_021}", []).append(n)
    longest = max(index.values(), key=len)
    return len(longest)


def blobs():
    kept = []
    for size in (1 << 16, 1 << 20, 1 << 22, 1 << 24):
        kept.append(bytearray(size))
        kept[-1][:: 4096] = b"x" * (size // 4096)
        if len(kept) > 2:
            kept.pop(0)
    return sum(map(len, kept))


for step in range(3):
    print(step, numbers(), words(), blobs(), Node(1, 16).total())
    gc.collect()
