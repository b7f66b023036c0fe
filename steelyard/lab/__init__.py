"""The laboratory: many runs, and what may be said of them."""
