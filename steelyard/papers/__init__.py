"""The papers' tables as data, and the command that regenerates them."""
