"""The client: trains on this node's digits."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import local_data, network

app = ClientApp()


@app.train()
def train(message, context):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = local_data(context)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for i in range(0, len(x), 16):
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(x[i : i + 16]), y[i : i + 16]).backward()
            opt.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})})
    return Message(content=content, reply_to=message)
