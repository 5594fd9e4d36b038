"""The card beside a converted model; test_pipeline.py has that of a whole run."""

from __future__ import annotations

from luna.convert.card import write_card


def test_the_card_of_a_converted_luna_says_which_one_it_is():
    options = {"M": 64, "L": 1, "nonneg": "exp", "share": "head"}
    facts = {"task": "mrpc", "attention": "luna", "options": options, "scores": {}, "floor": 0.5,
             "phi_parameters": 1, "recovery": None, "headroom_recovery": None, "teacher": "hash",
             "recipe": {}, "seed": 1, "train_examples": 2, "torch": "2"}  # fmt: skip
    assert "# mrpc with luna (M=64, L=1, nonneg=exp) attention" in write_card("model", facts)
