"""Federated fine-tuning of a small GPT: what a server should return for LoRA adapters.

    python examples/lora/shakespeare.py --tiny                 # embedded text, one minute
    python examples/lora/shakespeare.py --data-dir DIR         # DIR/shakespeare; half an hour of two cores

A GPT of 0.24 million parameters, built from a configuration, learns to write characters from the
roles of some plays. Then roles of other plays are clients, who train LoRA adapters (PEFT). Two
questions:

1. Shared initialisation. All clients start each round from the global adapters, as in federated
   learning. FedAvg, FedAdp and FedAWA run with each of `factors` (means of A and of B), `svd`, `stack`
   and `residual`; the last two are exact.
2. Independent initialisations. Each role trains an adapter of its own, and the finished adapters are
   merged once, as people merge adapters that they find.

The tables have the perplexity by character on the test samples of the clients' roles: mean and
standard deviation over seeds.
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from torch import nn

import steelyard
from steelyard.adapter_merge import AdapterMerge, summarize_merge
from steelyard.data import Dataset, load

KINDS = ("factors", "svd", "residual", "stack")
RULES = ("fedavg", "fedadp", "fedawa")
LENGTH = 64  # characters of a sample
RANK = 4
SAMPLES = 150  # of each client's role, at most
LOCAL = {"lr": 0.5, "batch_size": 16}


class Writer(nn.Module):
    """A GPT-2 that returns the logits of the next character, `[batch, characters, positions]`."""

    def __init__(self, width=96, layers=2):
        super().__init__()
        config = transformers.GPT2Config(
            vocab_size=80,
            n_positions=LENGTH,
            n_embd=width,
            n_layer=layers,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.gpt = transformers.GPT2LMHeadModel(config)

    def forward(self, tokens):
        return self.gpt(tokens).logits.transpose(1, 2)


def read_roles(arguments):
    """Returns training and test samples by role, the roles with most samples first."""
    directory = arguments.data_dir or Path(__file__).parent
    split = load(f"shakespeare:length={LENGTH},stride={LENGTH // 2}", directory)
    roles = []
    counts = torch.bincount(split[0].groups)
    for number in counts.argsort(descending=True).tolist():
        parts = [
            to_sequences(data.take(data.groups == number)).take(slice(SAMPLES)) for data in split
        ]
        if min(map(len, parts)) > 0:
            roles.append(parts)
    return roles


def to_sequences(data):
    """Returns samples whose targets are the next character at every position."""
    text = torch.cat([data.inputs, data.targets[:, None]], dim=1)
    return Dataset(text[:, :-1].contiguous(), text[:, 1:].contiguous(), name="shakespeare")


def join(datasets):
    """Returns the samples of several data sets as one."""
    inputs = torch.cat([data.inputs for data in datasets])
    return Dataset(inputs, torch.cat([data.targets for data in datasets]), name="shakespeare")


def pretrain(roles, steps, seed):
    """Returns a GPT that was trained on the text of some roles."""
    torch.manual_seed(seed)
    model = Writer()
    data = join([train for train, _ in roles])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        chosen = torch.randint(len(data), (32,))
        loss = nn.functional.cross_entropy(model(data.inputs[chosen]), data.targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"  pre-training, step {step}: loss {loss.item():.3f}", flush=True)
    return model


def adapt(base, seed):
    """Returns the GPT with new LoRA adapters."""
    model = Writer()
    model.load_state_dict(base.state_dict())
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=["c_attn", "c_fc"],
        fan_in_fan_out=True,
    )
    return peft.get_peft_model(model, config)


@torch.no_grad()
def measure_perplexity(model, test):
    """Returns the perplexity by character."""
    model.eval()
    losses = [
        nn.functional.cross_entropy(model(inputs), targets) * len(inputs)
        for inputs, targets in zip(test.inputs.split(256), test.targets.split(256), strict=True)
    ]
    return math.exp(float(sum(losses)) / len(test))


def train_federation(base, roles, rule, lora, rounds, seed):
    """Returns the perplexity after each round, and the mean error of the server's result."""
    history = steelyard.simulate(
        rule,
        {f"role-{number}": train for number, (train, _) in enumerate(roles)},
        adapt(base, seed),
        test=join([test for _, test in roles]),
        rounds=rounds,
        lora=lora,
        seed=seed,
        local={**LOCAL, "epochs": 2},
    )
    errors = [error for record in history.records for error in record["lora_error"].values()]
    return [math.exp(record["loss"]) for record in history.records], statistics.mean(errors)


def train_alone(base, train, epochs, seed, folder):
    """Trains an adapter on the text of one role, and writes it as a PEFT directory."""
    model = adapt(base, seed)
    history = steelyard.simulate(
        "uniform",
        {"role": train},
        model,
        rounds=1,
        lora="factors",
        seed=seed,
        evaluate_every=0,
        local={**LOCAL, "epochs": epochs},
    )
    steelyard.load_model(model, history.params)
    model.save_pretrained(str(folder))
    return folder


def merge_independent(base, roles, epochs, seed):
    """Returns the perplexity of each kind of merge, its error, and the adapters' mean cosine."""
    test = join([test for _, test in roles])
    results = {"no adapter": (measure_perplexity(base, test), None)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        adapters = [
            train_alone(base, train, epochs, 1000 * seed + number, folder / f"role-{number}")
            for number, (train, _) in enumerate(roles)
        ]
        for lora in ("factors", f"svd:{RANK}", "stack"):
            job = AdapterMerge(adapters, "uniform", lora=lora)
            summary = summarize_merge(job.run(folder / "merged", force=True))
            merged = Writer()
            merged.load_state_dict(base.state_dict())
            merged = peft.PeftModel.from_pretrained(merged, str(folder / "merged"))
            results[lora] = (measure_perplexity(merged, test), summary.error)
    return results, summary.mean_cosine


def format_numbers(values, digits=3):
    """Returns mean and standard deviation as text."""
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def main():
    """Runs both experiments and prints their tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="directory with shakespeare/; else embedded")
    parser.add_argument("--tiny", action="store_true", help="one seed and few rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds, rounds, steps, epochs, clients = (0, 1, 2), 8, 1500, 20, 8
    rules = RULES
    if arguments.tiny:
        seeds, rounds, steps, epochs, clients, rules = (0,), 2, 100, 3, 4, ("fedavg",)

    # Clients have the largest roles, and the GPT learns from the next ones.
    roles = read_roles(arguments)
    others = roles[clients : clients + 60]
    roles = roles[:clients]
    curves, errors, merges, cosines = {}, {}, {}, []
    for seed in seeds:
        print(f"seed {seed}", flush=True)
        base = pretrain(others, steps, seed)
        for rule in rules:
            for lora in KINDS:
                curve, error = train_federation(base, roles, rule, lora, rounds, seed)
                curves.setdefault((rule, lora), []).append(curve)
                errors.setdefault((rule, lora), []).append(error)
                print(f"  {rule}, {lora}: {curve[-1]:.3f}", flush=True)
        results, cosine = merge_independent(base, roles, epochs, seed)
        cosines.append(cosine)
        for lora, result in results.items():
            merges.setdefault(lora, []).append(result)

    # Tables, as Markdown.
    marks = sorted({1, rounds // 4, rounds // 2, rounds} - {0})
    print("\nShared initialisation: perplexity after some rounds, and the error of the server\n")
    heads = " | ".join(f"round {mark}" for mark in marks)
    print(f"| rule | lora | {heads} | error |\n|---|---|{'---|' * len(marks)}---|")
    for (rule, lora), rows in curves.items():
        cells = [format_numbers([row[mark - 1] for row in rows]) for mark in marks]
        error = f"{100 * statistics.mean(errors[rule, lora]):.1f} %"
        print(f"| {rule} | {lora} | {' | '.join(cells)} | {error} |")
    print("\nIndependent initialisations: perplexity of the merged adapter\n")
    print(f"Mean cosine between adapters: {format_numbers(cosines)}\n")
    print("| merged by | perplexity | error |\n|---|---|---|")
    for lora, rows in merges.items():
        found = [error for _, error in rows if error is not None]
        error = f"{100 * statistics.mean(found):.1f} %" if found else ""
        print(f"| {lora} | {format_numbers([value for value, _ in rows])} | {error} |")


if __name__ == "__main__":
    main()
