"""Run directories: what a run leaves on disk, for the simulator, Flower, reports and experiments."""
