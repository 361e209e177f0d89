"""The norm of each channel of a convolution: see `closer_look.ChannelNorms`."""

from papers.closer_look import ChannelNorms
from rl_plasticity import CALLBACKS

CALLBACKS["channel_norms"] = ChannelNorms
