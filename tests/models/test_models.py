"""The papers' networks: sizes as counted in the authors' code, initialisation, errors."""

import pytest
import torch
from torch import nn

from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse, to_text
from steelyard.models import MODELS, build
from steelyard.models._cnn import SimpleCNN
from steelyard.models._linear import MLP
from steelyard.models._resnet import ResNet
from tests import golden

GREY, COLOUR, DIGIT = (1, 28, 28), (3, 32, 32), (1, 8, 8)


def test_vit_has_no_dropout_on_the_attention():
    """As in FedAWA's code: with all dropout modules off, training computes what evaluation does."""
    model = build("vit:dim=16,depth=2,heads=2,head_dim=8,hidden=16,dropout=0.5", COLOUR, 10, 0)
    modules = [part for part in model.modules() if isinstance(part, nn.Dropout)]
    assert len(modules) == 1 + 2 * 3  # the embedding; per layer the projection and two linear maps
    assert {part.p for part in modules} == {0.5}
    for part in modules:
        part.p = 0.0
    inputs = torch.randn(4, *COLOUR, generator=torch.Generator().manual_seed(0))
    evaluated = model.eval()(inputs)
    assert torch.equal(model.train()(inputs), evaluated)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "counted"),
    [
        ("logistic", GREY, 10, "FedAdp MLR"),
        ("mlp", GREY, 10, "FedLAW/AWA MLP (FMNIST)"),
        ("mlp:hidden=[200],dropout=0.5", GREY, 10, "FedCos MLP(784,200,10)"),
        ("mlp:hidden=[100,100]", GREY, 10, "FedDyn emnist"),
        ("mlp:hidden=[100]", GREY, 10, None),
        ("mcmahan_cnn", GREY, 10, "FedAdp CNN, same padding (3136x512 FC)"),
        ("mcmahan_cnn:padding=false", GREY, 10, "FedAdp CNN, no padding (1024x512 FC)"),
        ("fedlaw_lenet", GREY, 10, "FedLAW/AWA LeNet5 (FMNIST)"),
        ("lenet", COLOUR, 10, "FedCos CNNCifar"),
        ("lenet", GREY, 10, "FedDisco simple-cnn-mnist nc=10"),
        ("mnist_cnn", GREY, 10, "FedCos CNNMnist"),
        ("alexnet_cifar", COLOUR, 10, "CriticalFL alex_cifar10"),
        ("alexnet_fmnist", (1, 32, 32), 10, "CriticalFL alex_fmnist"),
        ("alexnet_fmnist", GREY, 10, "CriticalFL alex_fmnist"),
        ("simple_cnn", COLOUR, 10, "FedLAW/AWA CNNCifar10"),
        ("simple_cnn", COLOUR, 100, "FedLAW/AWA CNNCifar100"),
        ("resnet20", COLOUR, 10, "FedLAW/AWA ResNet20 nc=10"),
        ("resnet20", COLOUR, 200, "FedLAW/AWA ResNet20 nc=200"),
        ("resnet:depth=56", COLOUR, 100, "FedLAW/AWA ResNet56 nc=100"),
        ("resnet:depth=110", COLOUR, 10, "FedLAW/AWA ResNet110 nc=10"),
        ("resnet:depth=8", COLOUR, 10, "CReFF ResNet8 scaling=1"),
        ("resnet:depth=8,width=4", COLOUR, 10, "CReFF ResNet8 scaling=4"),
        ("wrn56_2", COLOUR, 10, "FedLAW/AWA WRN56_2 nc=10"),
        ("wrn56_4", COLOUR, 100, "FedLAW/AWA WRN56_4 nc=100"),
        ("wrn56_4", COLOUR, 10, "FedLAW/AWA WRN56_4 nc=10"),
        ("resnet18", COLOUR, 10, "FedAWA ResNet18 nc=10"),
        ("resnet18", COLOUR, 100, "CriticalFL resnet18_cifar100"),
        ("resnet18:norm=fedcos", COLOUR, 10, "FedCos resnet18 gn=16"),
        ("resnet18:max_pool=true", (3, 64, 64), 200, "FedAWA ResNet18 nc=200"),
        ("densenet121", COLOUR, 10, "FedLAW/AWA DenseNet121 nc=10"),
        ("densenet121", COLOUR, 100, "FedLAW/AWA DenseNet121 nc=100"),
        ("vit", COLOUR, 10, "FedAWA ViT nc=10"),
        ("vit", COLOUR, 100, "FedAWA ViT nc=100"),
        ("vit", (3, 64, 64), 200, "FedAWA ViT tiny nc=200 (64px, patch 4)"),
        ("char_lstm", (80,), 80, "FedDyn/LEAF Shakespeare LSTM (emb 8, 2x100, 80)"),
        ("char_lstm:embedding=256,hidden=512", (80,), 80, "CriticalFL CharLSTM"),
    ],
)
def test_as_many_numbers_as_in_the_authors_code(spec, shape, classes, counted):
    model = build(spec, shape, classes, seed=0)
    found = {
        "params": sum(p.numel() for p in model.parameters()),
        "buffers": sum(b.numel() for b in model.buffers()),
    }
    by_hand = {"params": 784 * 100 + 100 + 100 * 10 + 10, "buffers": 0}
    assert found == (golden.document("param_counts")[counted] if counted else by_hand)


def test_the_cnn_of_pfl_has_as_many_parameters_as_its_layers_add_up_to():
    layers = [3 * 32 * 9 + 32, 32 * 64 * 9 + 64, 14 * 14 * 64 * 128 + 128, 128 * 10 + 10]
    model = build("pfl_cnn", COLOUR, 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == sum(layers) == 1_626_442
    with pytest.raises(SteelyardError, match="pfl_cnn needs images of at least 6x6"):
        build("pfl_cnn", (3, 5, 9), 10, seed=0)


@pytest.mark.parametrize(
    "spec", ["resnet:depth=20,norm=group", "resnet:depth=56,norm=group,groups=16"]
)
def test_group_norm_has_the_same_parameters_and_no_buffers(spec):
    with_groups, with_batches = (
        build(spec, COLOUR, 10, seed=0),
        build(spec.split(",")[0], COLOUR, 10, seed=0),
    )
    assert [p.shape for p in with_groups.parameters()] == [
        p.shape for p in with_batches.parameters()
    ]
    assert not list(with_groups.buffers())


def test_all_norms_of_resnet18_have_the_same_parameters():
    kinds = [
        build(f"resnet18:norm={norm}", COLOUR, 10, seed=0) for norm in ("batch", "group", "fedcos")
    ]
    assert {sum(p.numel() for p in model.parameters()) for model in kinds} == {11_173_962}
    assert [sum(b.numel() for b in model.buffers()) for model in kinds] == [9620, 0, 1795]
    groups = {part.num_groups for part in kinds[2].modules() if isinstance(part, nn.GroupNorm)}
    assert groups == {16}


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        *(
            (spec, shape)
            for spec in (
                "logistic",
                "mlp",
                "mcmahan_cnn",
                "simple_cnn",
                "resnet20",
                "fedlaw_lenet",
                "alexnet_fmnist",
            )
            for shape in (DIGIT, GREY, COLOUR, (2, 33, 21))
            if (spec, shape) != ("simple_cnn", DIGIT)  # too small: see below
        ),
        *(
            (spec, shape)
            for spec in ("mcmahan_cnn:padding=false", "lenet", "mnist_cnn", "alexnet_cifar")
            for shape in (GREY, COLOUR, (2, 33, 21))
        ),
        ("pfl_cnn", DIGIT),
        ("mlp:hidden=[20],dropout=0.5", DIGIT),
        ("resnet:depth=8,norm=group", (2, 13, 9)),
        ("resnet:depth=8,width=2", DIGIT),
        ("resnet18:norm=fedcos", DIGIT),
        ("resnet18:norm=group,groups=4", DIGIT),
        ("resnet18:max_pool=true", (2, 13, 9)),
        ("densenet121", (2, 17, 9)),
        ("vit:dim=16,depth=2,heads=2,head_dim=4,hidden=8", (2, 12, 8)),
        ("char_lstm:vocabulary=5", (6,)),
        ("text_mean:vocabulary=5,embedding=4", (6,)),
    ],
)
def test_forward_and_backward(spec, shape):
    model = build(spec, shape, 7, seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # dropout
        inputs = torch.rand(3, *shape) if len(shape) > 1 else torch.randint(5, (3, *shape))
        out = model(inputs)
    assert out.shape == (3, 7)
    out.square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.ndim > 1
    )


def test_the_mlp_is_a_plain_sequence():
    kinds = [type(layer) for layer in build("mlp:hidden=[5,4]", GREY, 10, seed=0)]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_the_order_of_layers_in_simple_cnn():
    names = [type(layer).__name__ for layer in build("simple_cnn", COLOUR, 10, seed=0)]
    block = ["Conv2d", "MaxPool2d", "ReLU"]
    assert names == [*block, *block, "Conv2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("spec", ["mcmahan_cnn", "simple_cnn", "pfl_cnn", "lenet", "fedlaw_lenet"])
def test_pooling_before_relu_gives_the_bits_of_relu_before_pooling(spec):
    model = build(spec, COLOUR, 10, seed=0).eval()
    layers = list(model)
    for position, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            layers[position : position + 2] = [layers[position + 1], layer]
    paper_order = nn.Sequential(*layers)
    assert [type(layer) for layer in paper_order][1] is nn.ReLU
    images = torch.rand(8, *COLOUR)

    gradients = [
        torch.autograd.grad(network(images).square().sum(), model.parameters())
        for network in (model, paper_order)
    ]

    assert torch.equal(model(images), paper_order(images))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)


def test_fedcos_drops_before_the_relu():
    kinds = [type(layer) for layer in build("mlp:hidden=[5],dropout=0.5", GREY, 10, seed=0)]
    assert kinds == [nn.Flatten, nn.Linear, nn.Dropout, nn.ReLU, nn.Linear]


def test_the_max_pool_halves_the_image():
    shapes = {}
    for spec in ("resnet18", "resnet18:max_pool=true"):
        *body, _, _ = build(spec, (3, 64, 64), 10, seed=0)
        shapes[spec] = nn.Sequential(*body).eval()(torch.zeros(1, 3, 64, 64)).shape[2:]
    assert shapes == {"resnet18": (8, 8), "resnet18:max_pool=true": (4, 4)}


def test_the_vision_transformer_knows_where_patches_are():
    model = build("vit:dim=16,depth=1,heads=2,head_dim=4,hidden=8", (1, 8, 8), 3, seed=0).eval()
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    moved = image.roll(4, dims=3)
    assert not torch.allclose(model(image), model(moved), atol=1e-3)
    model[0].position.data.zero_()
    assert torch.allclose(
        model(image), model(moved), atol=1e-6
    )  # without positions, patches are a set


def test_the_lstm_reads_the_order_and_predicts_from_the_end():
    model = build("char_lstm", (5,), 80, seed=0)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    assert not torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-4)
    steps = model[1].lstm(model[0](tokens))[0]
    assert torch.equal(model(tokens), model[2](steps[:, 4]))


def test_padding_does_not_count_in_the_mean():
    model = build("text_mean:vocabulary=9,embedding=4", (5,), 3, seed=0)
    padded, plain = torch.tensor([[3, 7, 0, 0, 0]]), torch.tensor([[7, 3]])
    assert torch.allclose(model(padded), model(plain), atol=1e-6)
    assert torch.allclose(model(torch.zeros(1, 5, dtype=torch.int64)), model[1].bias)


def natural_shape(name):
    return (12,) if name in ("char_lstm", "text_mean") else COLOUR


@pytest.mark.parametrize("entry", list(MODELS), ids=lambda entry: entry.name)
def test_the_seed_alone_decides_and_nothing_global_moves(entry):
    shape = natural_shape(entry.name)
    torch.rand(1)
    before = torch.random.get_rng_state()
    first = build(entry.name, shape, 10, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    again, other = (build(entry.name, shape, 10, seed=seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("entry", list(MODELS), ids=lambda entry: entry.name)
def test_options_are_those_a_user_gives(entry):
    assert not {"input_shape", "classes", "seed"} & set(entry.options)


@pytest.mark.parametrize(
    "part", [MLP((3, 2)), MLP(), MLP((4,), 0.5), SimpleCNN(), ResNet(56), ResNet(8, "group", 2, 4)]
)
def test_text_form(part):
    assert parse(to_text(part), MODELS) == part
    assert build(part, COLOUR, 10, seed=0)(torch.zeros(2, *COLOUR)).shape == (2, 10)


@pytest.mark.parametrize(
    ("spec", "low"),
    [
        ("mcmahan_cnn", 4),
        ("mcmahan_cnn:padding=false", 16),
        ("simple_cnn", 18),
        ("resnet20", 4),
        ("resnet18", 4),
        ("resnet18:max_pool=true", 4),
        ("fedlaw_lenet", 4),
        ("lenet", 16),
        ("mnist_cnn", 16),
        ("alexnet_cifar", 15),
        ("densenet121", 8),
        ("vit:dim=8,depth=1,heads=1", 4),
    ],
)
def test_the_smallest_image_that_works(spec, low):
    assert build(spec, (1, low, low), 2, seed=0)(torch.zeros(2, 1, low, low)).shape == (2, 2)
    with pytest.raises(SteelyardError, match=f"needs images of at least {low}x{low}"):
        build(spec, (1, low, low - 1), 2, seed=0)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "message"),
    [
        ("mcmahan_cnn", (784,), 10, r"input_shape=\(784,\): mcmahan_cnn takes images"),
        ("mlp", (), 10, "use the shape of one sample"),
        ("mlp", (0, 3), 10, "use the shape of one sample"),
        ("mlp", GREY, 0, "classes=0"),
        ("mlp:hidden=200", GREY, 10, r"hidden=200: use a list of widths, e\.g\. \[200,200\]"),
        ("mlp:hidden=[0]", GREY, 10, "hidden=0: use a whole number >= 1"),
        ("mlp:depth=2", GREY, 10, "mlp has no option 'depth'"),
        ("resnet:depth=18", COLOUR, 10, r"depth=18: use 6n \+ 2"),
        ("resnet:norm=layer", COLOUR, 10, "norm='layer': use one of 'batch', 'group'"),
        ("resnet:norm=group,groups=3", COLOUR, 10, "groups=3: use a divisor of 16"),
        ("resnet:width=0", COLOUR, 10, "width=0: use a whole number >= 1"),
        ("resnet18:norm=layer", COLOUR, 10, "use one of 'batch', 'group', 'fedcos'"),
        ("resnet18:norm=fedcos,groups=48", COLOUR, 10, "groups=48: use a divisor of 64"),
        ("resnet18:max_pool=2", COLOUR, 10, "max_pool=2: use one of False, True"),
        ("mcmahan_cnn:padding=2", COLOUR, 10, "padding=2: use one of False, True"),
        ("mlp:dropout=2", GREY, 10, r"dropout=2: use a number in \[0.0, 1.0\]"),
        ("alexnet:stem=huge", COLOUR, 10, "stem='huge': use one of 'small', 'large'"),
        ("alexnet:dropout=-1", COLOUR, 10, "dropout=-1"),
        ("vit:patch=5", COLOUR, 10, "patch=5: images are 32x32, use a divisor of both sides"),
        ("vit:heads=0", COLOUR, 10, "heads=0: use a whole number >= 1"),
        ("vit:dropout=2", COLOUR, 10, "dropout=2"),
        ("char_lstm", GREY, 10, r"input_shape=\(1, 28, 28\): char_lstm takes tokens \(length,\)"),
        ("char_lstm:hidden=0", (5,), 10, "hidden=0"),
        ("char_lstm:vocabulary=0", (5,), 10, "vocabulary=0"),
        ("text_mean", GREY, 10, "text_mean takes tokens"),
        ("text_mean:vocabulary=1", (5,), 10, "vocabulary=1: use a whole number >= 2"),
        ("resnet21", COLOUR, 10, "did you mean 'resnet20'"),
    ],
)
def test_refused(spec, shape, classes, message):
    with pytest.raises(SteelyardError, match=message):
        build(spec, shape, classes, seed=0)
