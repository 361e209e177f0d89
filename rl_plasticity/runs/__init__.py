"""The folder of a run, and its life from start to end."""
