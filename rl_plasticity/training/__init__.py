"""What the loops of the two commands ask to do its part after each update and step."""
