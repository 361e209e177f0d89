"""Plugs that have a run looked at closely, one for each look: ``plugins=[papers.looks.tasks]``."""
