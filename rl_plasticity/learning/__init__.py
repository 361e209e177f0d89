"""Where weights change: one update of a network, in our loops and in other people's."""
