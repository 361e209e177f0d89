"""The parts of both commands' training loops: what is done after each update and step."""
