"""The types every rule is written in: needs, view, Gram, mixture, layout, and the round that joins them."""
