"""Configurations: `default` holds the whole tree, the other files set what differs for one environment and algorithm."""
