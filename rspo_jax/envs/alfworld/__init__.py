"""ALFWorld: household tasks in text, played by an own simulator that behaves like the official text engine."""
