"""Server optimizers, refiners and the server's proxy data."""
