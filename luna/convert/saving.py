"""Loading what `save_pretrained` wrote, and small files of the feature maps alone.

A converted model is saved by its host's own method. Its feature maps are then in the weights file
and its description in config.json; :func:`load` builds the model from both and checks that every
tensor found its place. Nothing here reads or writes pickle.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import host
from luna.convert.swap import convert, describe, feature_maps, weights_hash

PHI = ".luna_attn."
CHOICES = ("max_len", "profile", "seed", "context_dropout")


def load(folder: str | Path) -> Any:
    """The converted model in `folder`, in eval mode; never softmax in silence."""
    folder = Path(folder)
    transformers = host.transformers()
    config = _read_config(folder)
    tensors = _read_tensors(folder)
    phi = {key: tensor for key, tensor in tensors.items() if PHI in key}
    weights = {key: tensor for key, tensor in tensors.items() if PHI not in key}

    block = config["luna"]
    cls = getattr(transformers, (config.get("architectures") or [""])[0], None)
    if cls is None:
        raise LunaError(f"{folder}/config.json names no architecture that transformers knows")
    plain = transformers.AutoConfig.from_pretrained(
        folder, attn_implementation=block["host_implementation"]
    )
    del plain.luna
    model, report = cls.from_pretrained(
        None, config=plain, state_dict=weights, output_loading_info=True
    )
    _check(folder, "missing", report["missing_keys"])
    _check(folder, "unexpected", report["unexpected_keys"])
    _check(folder, "misshapen", report["mismatched_keys"])

    apply(model, block, phi, origin=str(folder))
    return model.eval()


def save_adapter(model: nn.Module, path: str | Path) -> None:
    """The feature maps of a model whose host weights are still the teacher's (stage 1 changes
    nothing else), for :func:`load_adapter` on an untouched teacher."""
    from safetensors.torch import save_file

    block = describe(model)
    maps = feature_maps(model)
    assert block is not None
    if weights_hash(model) != block["teacher"]:
        raise LunaError(
            "the host's weights have changed since conversion (finetuning): an adapter holds "
            "feature maps alone, save the whole model with save_pretrained"
        )
    tensors = {
        f"{layer}{PHI}{name}": tensor.detach().cpu().contiguous().clone()
        for layer, attention in maps.items()
        for name, tensor in attention.state_dict().items()
    }
    save_file(tensors, path, metadata={"luna": json.dumps(block)})


def load_adapter(model: nn.Module, path: str | Path) -> Any:
    """The teacher `model` (left as it is) converted with the feature maps of an adapter file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            described = (file.metadata() or {}).get("luna")
            phi = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise LunaError(f"{path} cannot be read: {error}") from error
    if described is None:
        raise LunaError(f"{path} is not a file of luna.convert.save_adapter")
    block = json.loads(described)
    if weights_hash(model) != block["teacher"]:
        raise LunaError(
            f"{path} was made for another model: its feature maps were fitted to weights with "
            f"hash {block['teacher'][:12]}, this model's is {weights_hash(model)[:12]}"
        )
    student = convert(
        model, block["method"], layers=block["layer_numbers"], **_choices(block), **block["options"]
    )
    _fill(student, phi, origin=str(path))
    student_block = describe(student)
    assert student_block is not None
    student_block["stage"] = block["stage"]
    return student


def apply(model: nn.Module, block: dict[str, Any], phi: dict[str, Tensor], *, origin: str) -> None:
    """Convert `model` in place as `block` describes and fill its feature maps."""
    convert(
        model,
        block["method"],
        layers=block["layer_numbers"],
        inplace=True,
        **_choices(block),
        **block["options"],
    )
    _fill(model, phi, origin=origin)
    kept = describe(model)
    assert kept is not None
    kept.update({key: block[key] for key in ("teacher", "stage")})


def _choices(block: dict[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in CHOICES}


def _fill(model: nn.Module, phi: dict[str, Tensor], *, origin: str) -> None:
    """Every tensor into its layer. The host may rename a layer on disk (ViT), its number stays."""
    layers = {_numbers(name): name for name in feature_maps(model)}
    by_layer: dict[str, dict[str, Tensor]] = {name: {} for name in layers.values()}
    unexpected = []
    for key, tensor in phi.items():
        where, _, name = key.partition(PHI)
        layer = layers.get(_numbers(where))
        if layer is None:
            unexpected.append(key)
        else:
            by_layer[layer][name] = tensor
    missing = []
    for layer, attention in feature_maps(model).items():
        own, given = attention.state_dict(), by_layer[layer]
        missing += [f"{layer}{PHI}{n}" for n in own.keys() - given.keys() if _required(n)]
        unexpected += [f"{layer}{PHI}{n}" for n in given.keys() - own.keys() if _required(n)]
        wrong = [n for n in own.keys() & given.keys() if own[n].shape != given[n].shape]
        _check(origin, "misshapen", [f"{layer}{PHI}{n}" for n in wrong])
    _check(origin, "missing", missing)
    _check(origin, "unexpected", unexpected)
    for layer, attention in feature_maps(model).items():
        attention.load_state_dict(by_layer[layer])


def _required(name: str) -> bool:
    return not name.startswith("generator_")  # there once the generator was used


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.|$)", name))


def _check(origin: str | Path, what: str, keys: Any) -> None:
    keys = sorted(str(key) for key in keys)
    if keys:
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        raise LunaError(f"{origin} does not fit the model, {what}: {', '.join(keys[:5])}{more}")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise LunaError(f"there is no {path}: give the folder that save_pretrained wrote")
    config = json.loads(path.read_text(encoding="utf-8"))
    if "luna" not in config:
        raise LunaError(
            f"{folder} holds no converted model (config.json has no 'luna' block): load it with "
            "transformers and convert it with luna.linearize"
        )
    return config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors.update(load_file(folder / name))
        except (SafetensorError, OSError) as error:
            raise LunaError(f"{folder / name} cannot be read: {error}") from error
    return tensors
