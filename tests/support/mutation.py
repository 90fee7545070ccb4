"""Damaged files, for the readers of files from clients."""

from __future__ import annotations

import random

# A reader may take these for sizes and offsets.
NUMBERS = [
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 40, 41, 64, 160, 255),
    *(2**15, 2**16 - 1, 2**20, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**33, 2**40, 2**62, 2**63 - 1, -1, -2, -8, -(2**31), -(2**63)),
]


def mutate(data: bytes | bytearray, chance: random.Random) -> bytes:
    """Change, drop, repeat or blank a few pieces of a file, mostly near its ends."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        length = chance.choice((1, 1, 2, 4, 8, 16, 46))
        reach = chance.choice((80, 512, len(data)))
        at = chance.randrange(max(1, min(len(changed), reach)))
        if chance.random() < 0.3:
            at = max(0, len(changed) - 1 - at)
        number = chance.choice(NUMBERS) % 2 ** (8 * length)
        changed[at : at + length] = chance.choice(
            (
                chance.randbytes(length),
                b"\xff" * length,
                bytes(length),
                b"",
                bytes(changed[at : at + length]) * 2,
                number.to_bytes(length, "little"),
            )
        )
    return bytes(changed)
