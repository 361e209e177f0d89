"""Plugin that logs the balancedness of an MLP: see `closer_look.Balancedness`."""

from papers.closer_look import Balancedness
from rl_plasticity import CALLBACKS

CALLBACKS["balancedness"] = Balancedness
