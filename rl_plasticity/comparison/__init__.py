"""Runs compared: loaded, grouped, summarized, drawn, reported."""
