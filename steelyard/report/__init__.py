"""Pictures of runs and of data."""
