"""The text form of rules."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._spec import to_text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fedavg", steelyard.fedavg()),
        ("fedavg:by=quality", steelyard.fedavg(by="quality")),
        ("fedawa:steps=10,preset=official", steelyard.fedawa(steps=10, preset="official")),
        ("fedawa : steps = 10 , lr = 1e-2", steelyard.fedawa(steps=10, lr=0.01)),
        ("fedawa:travel=none", steelyard.fedawa(travel=None)),
        ("feddisco|fedawa", steelyard.chain(steelyard.feddisco(), steelyard.fedawa())),
        ("guard(fedadp):clip=3", steelyard.guard(steelyard.fedadp(), clip=3)),
        (
            "guard(feddisco:a=0.1|fedawa)",
            steelyard.guard(steelyard.chain(steelyard.feddisco(a=0.1), steelyard.fedawa())),
        ),
        (
            "gate(eq6:delta=0.1,fedawa:steps=2)",
            steelyard.gate(steelyard.fgn_increase(delta=0.1), steelyard.fedawa(steps=2)),
        ),
        (
            "gate(criticalfl_window:every=1,window=5,krum:f=2)",
            steelyard.gate(steelyard.criticalfl_window(every=1, window=5), steelyard.krum(f=2)),
        ),
        (
            "pa3fed:detector=criticalfl_window,score=neg_loss",
            steelyard.pa3fed(detector="criticalfl_window", score="neg_loss"),
        ),
        (
            "pa3fed:detector=eq6:delta=0.05",
            steelyard.pa3fed(detector=steelyard.fgn_increase(delta=0.05)),
        ),
        (
            "pa3fed:detector=eq6:0.05,beta=0.5",
            steelyard.pa3fed(beta=0.5, detector=steelyard.fgn_increase(delta=0.05)),
        ),
        (
            "feddisco|pa3fed:beta=1,detector=criticalfl_window:window=5,every=1,preset=literal|cap:0.5",
            steelyard.chain(
                steelyard.feddisco(),
                steelyard.pa3fed(
                    1, detector=steelyard.criticalfl_window(window=5, every=1), preset="literal"
                ),
                steelyard.parse_rule("cap:0.5"),
            ),
        ),
        (
            "guard(pa3fed:detector=eq6:first=false,delta=0.1):clip=3",
            steelyard.guard(
                steelyard.pa3fed(detector=steelyard.fgn_increase(first=False, delta=0.1)), clip=3
            ),
        ),
        (
            "gate(always,pa3fed:detector=always)",
            steelyard.gate(steelyard.always(), steelyard.pa3fed(detector="always")),
        ),
        ("pa3fed:score=loss,model=local", steelyard.pa3fed(score="loss", model="local")),
        (
            "pa3fed(criticalfl_window:every=3)",
            steelyard.pa3fed(detector=steelyard.criticalfl_window(every=3)),
        ),
        ("fedawa_l:layers=[20,4,30],steps=3", steelyard.fedawa_l(layers=(20, 4, 30), steps=3)),
        (
            "per_layer(fedawa):layers=module",
            steelyard.per_layer(steelyard.fedawa(), layers="module"),
        ),
        (
            "per_layer(fedadp):layers=[conv*,fc.*]",
            steelyard.per_layer(steelyard.fedadp(), layers=("conv*", "fc.*")),
        ),
        ("shrink(fedavg):gamma=0.9", steelyard.shrink(steelyard.fedavg(), 0.9)),
        ("fedavg|shrink:gamma=0.9", steelyard.shrink(steelyard.fedavg(), 0.9)),
        (
            "nnm(cap(fedadp):max_weight=0.2):f=2",
            steelyard.nnm(steelyard.cap(steelyard.fedadp(), 0.2), f=2),
        ),
    ],
)
def test_text_and_objects_are_the_same(text, rule):
    assert steelyard.parse_rule(text) == rule
    assert steelyard.parse_rule(to_text(rule)) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected"),
        ("fedawaa", "did you mean 'fedawa'"),
        ("nothing-like-it", "known: "),
        ("fedawa:step=10", "did you mean 'steps'"),
        ("fedawa:steps=10,steps=11", "given twice"),
        ("fedawa:steps", "expected '='"),
        ("fedawa:steps=", "expected"),
        ("fedawa|", "expected"),
        ("fedawa)", "unexpected"),
        ("guard(fedawa", r"expected '\)'"),
        ("guard", "guard"),
        ("guard(fedavg,fedadp)", "takes 1 in brackets, found 2"),
        ("gate(fedavg)", "gate"),
        ("krum:f=-1", "f=-1"),
        ("krum:f=1.5", "whole number"),
        ("fedadp:alpha=nan", "alpha=nan"),
        ("fedadp:clock=wall", "'round', 'client'"),
        ("fedawa:steps=0", "steps=0"),
        ("pa3fed:detector=eq6:dleta=1", "eq6 has no option 'dleta': did you mean 'delta'"),
        ("pa3fed:detector=eq6:delta=1,bta=1", "eq6 has no option 'bta'"),
        ("pa3fed:detector=eq6:delta=1,beta=1,beta=2", "'beta' of pa3fed is given twice"),
        ("pa3fed:detector=fedadp:alpha=3", "not a detector: use always"),
        ("pa3fed:detector=gate(eq6,fedadp)", "not a detector"),
        ("pa3fed:detector=eq6:", "expected"),
        ("pa3fed:preset=printed", "preset='printed'"),
        ("fedavg|median", "put it first"),
        ("fedawa_l|fedadp", "needs the whole model"),
        ("fedawa_l|ldawa:layers=module", "different layers"),
        ("per_layer(ldawa)", "already"),
        ("fedawa:layers=[1", "layers"),
        ("(" * 50, "expected"),
        ("guard(" * 50 + "fedavg" + ")" * 50, "nested more than 20"),
    ],
)
def test_wrong_texts_say_what_is_wrong(text, message):
    with pytest.raises(steelyard.SteelyardError, match=message):
        steelyard.parse_rule(text)


@given(st.text(alphabet="fedawguard|():,=[]0.1 \n\\'\"", max_size=60) | st.text(max_size=60))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_any_text_gives_a_rule_or_a_typed_error(text):
    try:
        rule = steelyard.parse_rule(text)
    except steelyard.SteelyardError:
        return
    assert steelyard.parse_rule(to_text(rule)) == rule


def test_wrappers_take_text_and_classes_too():
    adp, awa = steelyard.fedadp(), steelyard.fedawa()
    assert steelyard.guard("fedadp") == steelyard.guard(adp) == steelyard.guard(steelyard.fedadp)
    assert (
        steelyard.per_layer(steelyard.fedawa)
        == steelyard.fedawa_l()
        == steelyard.per_layer("fedawa")
    )
    assert steelyard.chain("feddisco", awa) == steelyard.parse_rule("feddisco|fedawa")
    assert (
        steelyard.gate(steelyard.fgn_increase(), "fedadp").rule
        == steelyard.if_finite("fedadp").rule
        == adp
    )
    assert steelyard.cap("fedadp", 0.2) == steelyard.parse_rule("fedadp|cap:max_weight=0.2")
    for wrong in (3, None, "eq6", steelyard.fgn_increase()):
        with pytest.raises(steelyard.SteelyardError, match="detectors go inside gate"):
            steelyard.guard(wrong)


def test_server_optimizers_share_the_syntax():
    assert steelyard.parse_optimizer("momentum:beta=0.5,convention=ema") == steelyard.momentum(
        beta=0.5, convention="ema"
    )
    assert steelyard.parse_optimizer("adam:betas=[0.5,0.9]") == steelyard.adam(betas=(0.5, 0.9))
    with pytest.raises(steelyard.SteelyardError, match="server optimizer"):
        steelyard.parse_optimizer("sgd|adam")


def test_a_bare_value_is_the_first_option():
    assert steelyard.parse_rule("fedadp:3") == steelyard.fedadp(alpha=3)
    assert steelyard.parse_rule("fedadp:3,clock=client") == steelyard.fedadp(
        alpha=3, clock="client"
    )
    assert steelyard.parse_rule("fedawa:official|cap:0.5") == steelyard.parse_rule(
        "fedawa:preset=official|cap:max_weight=0.5"
    )
    with pytest.raises(steelyard.SteelyardError, match="uniform has no option '3'"):
        steelyard.parse_rule("uniform:3")


@pytest.mark.parametrize(
    "rule",
    [
        steelyard.parse_rule(
            "fedawa:optimizer=sgd,lr=0.001"
        ),  # a default elsewhere, but not with this optimizer
        steelyard.parse_rule("fedawa:preset=official,lr=0.02"),
        steelyard.parse_rule("law:critical=0"),  # without learn=lambda it would be refused
        steelyard.fedavg(by="my metric"),
        steelyard.fedavg(by="1"),
        steelyard.fedavg(by="none"),
        steelyard.per_layer("fedadp", layers=("layer[12].*", "a:b")),
        steelyard.per_layer("fedadp", layers=("0.weight", "1")),
    ],
    ids=repr,
)
def test_text_builds_the_same_rule_again(rule):
    assert steelyard.parse_rule(to_text(rule)) == rule


def test_what_cannot_be_written_says_so():
    with pytest.raises(steelyard.SteelyardError, match="has no text form"):
        to_text(steelyard.fedavg(by='a"b'))


def test_the_word_for_what_is_left_out_is_no_value():
    for make in (
        lambda: steelyard.fedawa(init="preset"),
        lambda: steelyard.parse_rule("fedawa:init=preset"),
    ):
        with pytest.raises(
            steelyard.SteelyardError, match="init='preset': use one of 'log', 'raw'"
        ):
            make()


def test_the_constructors_of_others_may_refuse_as_they_like():
    @dataclass(frozen=True)
    class Mine:
        a: float = 1.0
        b: float | None = None
        table: tuple[float, ...] = field(init=False, default=())

        name = "mine"

        def __post_init__(self):
            if self.a > 1 and self.b is None:
                raise ValueError("a > 1 needs b")

    assert to_text(Mine(2.0, 3.0)) == "mine:a=2.0,b=3.0"
    assert to_text(Mine()) == "mine"
