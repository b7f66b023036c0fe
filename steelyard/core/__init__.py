"""The types that rules use (needs, view, Gram, mixture, layout) and the round that runs them."""
