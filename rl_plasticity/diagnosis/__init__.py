"""How plastic a network is."""
