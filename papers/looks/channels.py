"""Plugin that logs the norm of each output channel of a convolution: see `closer_look.ChannelNorms`."""

from papers.closer_look import ChannelNorms
from rl_plasticity import CALLBACKS

CALLBACKS["channel_norms"] = ChannelNorms
