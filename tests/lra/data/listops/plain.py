"""Another program for what is known of an expression from its first levels, as plain as can be:
unread arguments are drawn, one by one, and values are counted. Slow, and with an error of its own.

    python -m tests.lra.data.listops.plain FOLDER [EXAMPLES] [DRAWS]

prints what each reader scores on the first test examples of a prepared folder."""

from __future__ import annotations

import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator

Node = int | tuple[str, list["Node"]]
NAMES = ("MAX", "MED", "MIN", "SM")
POOL = 20_000  # values of unread expressions that are drawn beforehand, for each depth


def parse(text: str) -> Node:
    """`[MAX 2 9 [MIN 4 7 ] 0 ]`"""
    stack: list[list[Node]] = [[]]
    names = []
    for word in text.split():
        if word.startswith("["):
            names.append(word[1:])
            stack.append([])
        elif word == "]":
            arguments = stack.pop()
            stack[-1].append((names.pop(), arguments))
        else:
            stack[-1].append(int(word))
    return stack[0][0]


def apply(name: str, values: list[int]) -> int:
    if name == "SM":
        return sum(values) % 10
    return int({"MAX": max, "MIN": min, "MED": statistics.median}[name](values))


class Plain:
    """What a generator of these sizes would have drawn."""

    def __init__(self, max_depth: int, max_args: int, p_leaf: float, seed: int = 1):
        self.max_depth, self.max_args, self.p_leaf = max_depth, max_args, p_leaf
        self.rng = random.Random(seed)
        self.pools: dict[tuple[int, str], list[int]] = {}

    def node(self, depth: int) -> int:
        if depth == self.max_depth or self.rng.random() < self.p_leaf:
            return self.rng.randrange(10)
        return self.operator(depth, self.rng.choice(NAMES))

    def operator(self, depth: int, name: str) -> int:
        n = self.rng.randint(2, self.max_args)
        return apply(name, [self.node(depth + 1) for _ in range(n)])

    def unread(self, depth: int, name: str) -> int:
        """The value of an operator whose arguments are not read; without a name, nor is it."""
        if (key := (depth, name)) not in self.pools:
            names = [name or self.rng.choice(NAMES) for _ in range(POOL)]
            self.pools[key] = [self.operator(depth, one) for one in names]
        return self.rng.choice(self.pools[key])

    def draw(self, tree: Node, depth: int, operators: bool, at: int = 1) -> int:
        """One value of the tree, read so deep."""
        if isinstance(tree, int):
            return tree
        name, arguments = tree
        if at > depth:
            return self.unread(at, name if operators else "")
        return apply(name, [self.draw(one, depth, operators, at + 1) for one in arguments])

    def values(self, tree: Node, depth: int, operators: bool, draws: int) -> Counter[int]:
        return Counter(self.draw(tree, depth, operators) for _ in range(draws))


def examples(folder: str, most: int) -> Iterator[tuple[Node, int]]:
    from pathlib import Path

    import numpy as np

    from lra.data.listops.tokens import decode
    from lra.data.prepare import load_prepared

    split = load_prepared(Path(folder)).split("test")
    for i in range(min(most, len(split))):
        n = int(split.lengths(np.array([i]))[0])
        yield parse(decode(split.ids(np.array([i]))[0, :n])), int(split.labels[i])


if __name__ == "__main__":
    import json
    from pathlib import Path

    given, draws = [*examples(sys.argv[1], int(sys.argv[2]))], int(sys.argv[3])
    manifest = json.loads((Path(sys.argv[1]) / "manifest.json").read_text())
    sizes = manifest["facts"]["options"]
    plain = Plain(sizes["max_depth"], sizes["max_args"], sizes["p_leaf"])
    for depth in (1, 2, 3, 4):
        for operators in (False, True):
            guesses = [
                plain.values(tree, depth, operators, draws).most_common(1) for tree, _ in given
            ]
            right = sum(
                guess[0][0] == label for guess, (_, label) in zip(guesses, given, strict=True)
            )
            error = (right * (len(given) - right) / len(given)) ** 0.5
            what = f"depth {depth}" + " and operators" * operators
            print(
                f"{what:<22} {100 * right / len(given):5.1f} ± {100 * error / len(given):.1f}",
                flush=True,
            )
