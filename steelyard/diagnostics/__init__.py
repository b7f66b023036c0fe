"""Why a rule wins: the figures of the five papers as numbers, from tensors or from run directories."""
