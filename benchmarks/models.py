"""Shapes of the models the benchmarks aggregate."""

import torch

Shapes = dict[str, tuple[int, ...]]


def resnet20() -> Shapes:
    """The FedLAW/FedAWA ResNet-20: 272 474 parameters in 65 tensors (1x1 projection shortcuts, BatchNorm)."""
    shapes: Shapes = {}

    def conv(name: str, out: int, into: int, kernel: int) -> None:
        shapes[f"{name}.conv.weight"] = (out, into, kernel, kernel)
        shapes[f"{name}.bn.weight"] = (out,)
        shapes[f"{name}.bn.bias"] = (out,)

    conv("stem", 16, 3, 3)
    for stage, (into, out) in enumerate([(16, 16), (16, 32), (32, 64)], 1):
        for block in range(3):
            conv(f"layer{stage}.{block}.a", out, into if block == 0 else out, 3)
            conv(f"layer{stage}.{block}.b", out, out, 3)
            if block == 0 and into != out:
                conv(f"layer{stage}.{block}.shortcut", out, into, 1)
    shapes["fc.weight"], shapes["fc.bias"] = (10, 64), (10,)
    return shapes


def mcmahan_cnn() -> Shapes:
    """McMahan's CNN with same padding: 1 663 370 parameters in 8 tensors."""
    return {
        "conv1.weight": (32, 1, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 5, 5),
        "conv2.bias": (64,),
        "fc1.weight": (512, 3136),
        "fc1.bias": (512,),
        "fc2.weight": (10, 512),
        "fc2.bias": (10,),
    }


def eleven_million() -> Shapes:
    """11 000 000 parameters in 62 tensors of the sizes of a ResNet-18."""
    shapes: Shapes = {"stem.weight": (64, 3, 3, 3), "stem.bn.weight": (64,), "stem.bn.bias": (64,)}
    into = 64
    for stage, width in enumerate([64, 128, 256, 512], 1):
        for block in range(2):
            for part in "ab":
                shapes[f"layer{stage}.{block}.{part}.weight"] = (
                    width,
                    into if part == "a" else width,
                    3,
                    3,
                )
                shapes[f"layer{stage}.{block}.{part}.bn.weight"] = (width,)
                shapes[f"layer{stage}.{block}.{part}.bn.bias"] = (width,)
                into = width
    total = sum(torch.Size(shape).numel() for shape in shapes.values())
    while len(shapes) < 61:
        shapes[f"extra{len(shapes)}.weight"] = (64,)
        total += 64
    shapes["fc.weight"] = (11_000_000 - total,)
    return shapes


def random_model(
    shapes: Shapes, seed: int, around: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Standard normal parameters, or small steps around another model."""
    generator = torch.Generator().manual_seed(seed)
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return (
        model
        if around is None
        else {name: around[name] + 0.01 * value for name, value in model.items()}
    )
