"""Configurations: `default` holds the whole tree, the others set what differs for an environment and algorithm."""
