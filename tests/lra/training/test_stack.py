"""A method for each layer: its identity, its network, its cost, its record and its name."""

from __future__ import annotations

import pytest

import luna
from lra.base.errors import UserError
from lra.base.versions import numerics_of
from lra.compute.count import count_run
from lra.compute.state import state_of_run
from lra.looks import look_of
from lra.model.build import build_network
from lra.report.words import find_runs
from lra.results.frame import frame_of
from lra.results.record import load_records
from lra.settings.compose import compose
from lra.training.record import departures_of, evaluation_of
from lra.training.run import train

STACK = ("attention=stack", "compute=report", "model.n_layers=4")
LAYERS = "attention.layers=[{name:gated_deltanet,negative:true},gated_deltanet,gated_deltanet,gla]"


def test_entries_have_the_options_of_their_files():
    """Those of the preset, as attention=gla has them; what the entry says goes over them."""
    run = compose([*STACK, LAYERS])
    entries = run.attention["layers"]
    alone = compose(["attention=gla", "compute=report"]).attention
    assert entries[3] == {k: alone[k] for k in entries[3]}
    assert entries[3]["gates"] == "k"
    assert [entry.get("negative") for entry in entries] == [True, False, False, None]
    published = compose([*STACK, LAYERS, "attention.preset=published"])
    assert published.attention["layers"][3]["gates"] == "x"


def test_each_layer_has_its_method_and_its_options(small):
    network = build_network(small(*STACK, LAYERS))
    mixers = [block.attention for block in network.encoder.blocks]
    assert [m.name for m in mixers] == ["gated_deltanet"] * 3 + ["gla"]
    assert [m.attention.highest for m in mixers[:3]] == [2.0, 1.0, 1.0]


def test_more_layers_than_entries_begin_anew_and_fewer_are_refused(small):
    network = build_network(small(*STACK, "attention.layers=[gla,softmax,gla]"))
    assert [b.attention.name for b in network.encoder.blocks] == ["gla", "softmax", "gla", "gla"]
    with pytest.raises(UserError, match="names 3 layers and the model has 1"):
        build_network(small("attention=stack", "attention.layers=[gla,softmax,gla]"))


def test_what_layers_share_is_shared_among_those_of_one_entry(small):
    words = "attention.layers=[gla,{name:linformer,share_layers:true}]"
    blocks = build_network(small(*STACK, words)).encoder.blocks
    of_layers = [{id(p) for p in block.attention.attention.parameters()} for block in blocks]
    assert of_layers[1] & of_layers[3]
    assert not of_layers[0] & of_layers[1]
    assert not of_layers[0] & of_layers[2]


def test_its_layers_are_its_identity(small):
    """And options at the value of earlier runs are no part of it, nor of an entry."""
    runs = [small(*STACK, LAYERS), small(*STACK, LAYERS.replace("true", "false"))]
    assert len({run.experiment.identity("data") for run in runs}) == 2
    entry = small(*STACK, "attention.layers=[hydra]").experiment.settings()["attention"]["layers"]
    assert "shift" not in entry[0]


def test_a_raised_method_of_a_layer_is_another_run(small, monkeypatch):
    run = small(*STACK, LAYERS)
    before = run.experiment.identity("data")
    monkeypatch.setattr(luna.get("gla"), "numerics", 3)
    assert run.experiment.identity("data") != before
    assert numerics_of(run.attention, [])["attention"] == 3


def test_it_costs_what_its_layers_cost():
    def count(*words: str) -> int:
        run = compose(["compute=report", "task=listops", *words])
        return count_run(run, backward=False).parts["attention"].flops

    both = count("attention=stack", "attention.layers=[gla,softmax]")
    assert 2 * both == count("attention=gla") + count("attention=softmax")


def test_its_state_is_the_mean_of_its_layers():
    def state(layers: str) -> int | str | None:
        return state_of_run(compose([*STACK, f"attention.layers={layers}"]))

    assert state("[gla,hydra,hydra]") == (1024 + 2 * 1056 + 2) // 3
    assert state("[gla,softmax]") == "grows"
    assert state("[gla,nystrom]") is None


def test_a_run_its_record_and_its_name(small, runs):
    """Tables, `lra compare` and figures name it by its layers."""
    for word in (LAYERS, "attention.layers=[hydra,hydra]"):
        train(small(*STACK, word))
    records = load_records([runs])
    frame = frame_of(records).set_index("attention.layers")
    spelt = "gated_deltanet(negative=True)+2*gated_deltanet+gla"
    assert {*frame.index} == {spelt, "2*hydra"}
    for layers in frame.index:
        assert len(find_runs(f"stack,layers={layers}", frame_of(records))) == 1
    name = look_of("stack", {"layers": spelt}).name
    assert name == "gated_deltanet (negative=True) + 2 × gated_deltanet + gla"
    assert look_of("stack", {"layers": "3*gated_deltanet+softmax"}).name == (
        "3 × gated_deltanet + softmax"
    )


def test_a_method_with_options_that_came_later_trains(small, runs):
    """Its record says of the attention what its settings say."""
    assert luna.get("hydra").added
    train(small("attention=hydra", "compute=report"))
    (record,) = load_records([runs])
    assert "shift" not in record["attention"]


@pytest.mark.parametrize("order", ["[softmax,klt]", "[klt,softmax]"])
def test_it_draws_where_a_layer_does(order: str):
    """Then a batch in pieces draws other numbers, and is another run."""
    words = ["compute=report", "model.dropout=0", "model.attention_dropout=0"]
    run = compose([*STACK, f"attention.layers={order}", *words, "trainer.micro_batch=8"])
    assert run.draws
    assert run.chosen == {"micro_batch": 8}
    plain = compose([*STACK, "attention.layers=[softmax,gla]", *words, "trainer.micro_batch=8"])
    assert not plain.draws


@pytest.mark.parametrize("order", ["[longformer,softmax]", "[softmax,longformer]"])
def test_what_a_layer_does_otherwise_than_published_is_told(order: str):
    words = ["protocol=official", "attention.preset=published", "compute=report"]
    run = compose([*words, "attention=stack", f"attention.layers={order}"])
    alone = compose([*words, "attention=longformer"])
    assert departures_of(alone)
    assert departures_of(run) == departures_of(alone)


@pytest.mark.parametrize("order", ["[softmax,luna]", "[luna,softmax]"])
def test_it_is_evaluated_as_each_of_its_methods_is(order: str, small):
    ways = [
        evaluation_of(build_network(small(*words)), "cpu")
        for words in (
            ("attention=softmax",),
            ("attention=luna",),
            (*STACK, f"attention.layers={order}"),
        )
    ]
    assert ways[1] is not None
    assert set(ways[2].split(", ")) == {way for way in ways[:2] if way}
