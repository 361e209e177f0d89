"""Seeds derived from a run's own. `seeding` has them too; environments take them from here, where no torch is."""

import numpy as np


def derive(seed: int, *keys: int) -> int:
    """A seed below 2^63 that depends on `seed` and every key (numpy's SeedSequence): other keys, unrelated streams."""
    words = np.random.SeedSequence(seed, spawn_key=keys).generate_state(2)
    return int(words[0]) << 31 ^ int(words[1])
