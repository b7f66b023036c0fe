"""The client: trains on this node's digits, with whatever terms the server's algorithm asks for."""

from digits.task import network
from steelyard.flower import client, partitioned

# A node with data of its own reads it in a function of the context, instead of taking a part of
# ours: `def data(context): return inputs, targets`.
data = partitioned("digits", "dirichlet:alpha=0.3")

app = client(lambda _context: network(), data, local={"lr": 0.1, "epochs": 2, "batch_size": 16})
