"""Networks as other people write them, each with what has to be read of it."""

from foreign.expected import Expected
from foreign.first import FIRST, HAS_TRANSFORMERS
from foreign.graphs import GRAPHS
from foreign.oddities import ODDITIES
from foreign.vision import VISION

FOREIGN: dict[str, Expected] = {**FIRST, **VISION, **GRAPHS, **ODDITIES}

__all__ = ["FOREIGN", "HAS_TRANSFORMERS", "Expected"]
