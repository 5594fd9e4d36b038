"""Loading what `save_pretrained` wrote.

A converted model is saved by its host's own method: the feature maps are in its weights file and
the description of the conversion in config.json. :func:`load` builds the model from both and checks
that every tensor found its place. Nothing here reads or writes pickle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.host import GENERATOR, transformers
from luna.convert.host_config import eager_config, plain_file
from luna.convert.layers import ARCHITECTURE, SUPPORTED, find_sites, shortened
from luna.convert.swap import PHI, build_attention, convert, described, feature_maps

SOFTMAX_BY = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers")
LARGEST_OPTION = 2**20  # of max_len and of the method's numbers
UNSAVED = 2**24  # numbers that a model may hold beside those of its file, such as tables


def load(folder: str | Path) -> Any:
    """Load a converted model. Nothing in the folder is run, no host is asked, and a model that is
    larger than the folder's tensors is refused before it is built.

    folder   which `save_pretrained` of a converted model wrote
    returns  the model in eval mode
    """
    folder = Path(folder)
    config = _read_object(folder / "config.json")
    if "luna" not in config:
        raise LunaError(
            f"{folder} is not a converted model (config.json has no 'luna' block): load it with "
            "transformers and convert it with luna.linearize"
        )
    cls = architecture(folder)
    tensors = _read_tensors(folder)
    try:
        return _build_model(folder, cls, config, tensors)
    except LunaError:
        raise
    except Exception as error:  # of transformers and torch, whatever a crafted file causes
        reason = f"describes no model that can be built ({type(error).__name__}: {error})"
        raise _damaged(folder, reason) from error


def architecture(folder: Path) -> Any:
    """Return the class that config.json names, which must be one of a supported host."""
    config = _read_object(folder / "config.json")
    name = (config.get("architectures") or [""])[0]
    is_host = isinstance(name, str) and ARCHITECTURE.fullmatch(name)
    cls = getattr(transformers(), name, None) if is_host else None
    if cls is None:
        raise _damaged(folder, f"names no architecture of {SUPPORTED}, but {name!r}")
    if config.get("model_type") != cls.config_class.model_type or "quantization_config" in config:
        raise _damaged(folder, f"is not that of a plain {name}")
    return cls


def _build_model(
    folder: Path, cls: Any, config: dict[str, Any], tensors: dict[str, Tensor]
) -> nn.Module:
    description = config["luna"]
    original = description["host_implementation"]  # what revert sets again
    if original not in SOFTMAX_BY:
        reason = f"has luna.host_implementation {original!r}, none of {SOFTMAX_BY}"
        raise _damaged(folder, reason)
    _check_counts(folder, config, tensors)
    plain = eager_config(cls, {key: value for key, value in config.items() if key != "luna"})
    _check_size(folder, cls, plain, description, tensors)
    weights = {key: tensor for key, tensor in tensors.items() if PHI not in key}
    model, report = cls.from_pretrained(
        None, config=plain, state_dict=weights, output_loading_info=True, trust_remote_code=False
    )
    for what in ("missing", "unexpected", "mismatched"):
        _check_keys(folder, what, report[f"{what}_keys"])
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers().GenerationConfig.from_pretrained(folder)
    convert(
        model,
        description["method"],
        layers=description["layer_numbers"],
        inplace=True,
        **{key: description[key] for key in ("max_len", "seed")},
        **description["options"],
    )
    _fill(model, {key: t for key, t in tensors.items() if PHI in key}, folder)
    same = ("teacher", "stage", "host_implementation")
    described(model).update({key: description[key] for key in same})
    return model.eval()


def _check_counts(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse numbers by which transformers, or a method, would make long lists."""
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    limits = dict.fromkeys(LAYER_COUNTS, len(tensors)) | {"num_labels": largest}
    numbers = {"max_len": config["luna"]["max_len"], **config["luna"]["options"]}
    limits |= dict.fromkeys(numbers, LARGEST_OPTION)
    for key, value in ({key: config.get(key) for key in limits} | numbers).items():
        if isinstance(value, int) and value > limits[key]:
            raise _damaged(folder, f"has {key} {value}, which does not fit its tensors")


def _check_size(
    folder: Path, cls: Any, plain: Any, description: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Refuse a model with many more numbers than the file has, before memory is taken."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        skeleton = cls(plain)
        sites = find_sites(skeleton)
        options = {key: description[key] for key in ("method", "options", "max_len")}
        numbers = set(description["layer_numbers"])
        parts = [skeleton, *(build_attention(sites[i], **options, seed=0) for i in numbers)]
    needed = sum(t.numel() for part in parts for t in (*part.parameters(), *part.buffers()))
    saved = sum(tensor.numel() for tensor in tensors.values())
    if needed > 2 * saved + UNSAVED:
        reason = f"describes a model of {needed:,} numbers, its files hold {saved:,}"
        raise _damaged(folder, reason)


def _damaged(folder: Path, reason: str) -> LunaError:
    return LunaError(f"{folder}/config.json {reason}: save the model again")


def _fill(model: nn.Module, phi: dict[str, Tensor], folder: Path) -> None:
    """Load every tensor into its layer. A host may rename its layers on disk (ViT), but their
    numbers stay."""
    maps = feature_maps(model)
    layers = {_numbers(name): name for name in maps}
    expected = {f"{n}{PHI}{key}": t for n, m in maps.items() for key, t in m.state_dict().items()}
    saved = {}
    for key, tensor in phi.items():
        where, _, name = key.partition(PHI)
        saved[f"{layers.get(_numbers(where), where)}{PHI}{name}"] = tensor
    both = expected.keys() & saved.keys()
    _check_keys(folder, "mismatched", (k for k in both if expected[k].shape != saved[k].shape))
    _check_keys(folder, "missing", expected.keys() - saved.keys())
    _check_keys(folder, "unexpected", saved.keys() - expected.keys())
    for layer, attention in maps.items():
        start = layer + PHI
        attention.load_state_dict(
            {key.removeprefix(start): t for key, t in saved.items() if key.startswith(start)}
        )


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.|$)", name))


def _check_keys(folder: Path, problem: str, keys: Iterable[Any]) -> None:
    """Refuse tensors that have this problem. A generator has one only after it was used."""
    names = sorted(str(key) for key in keys if f"{PHI}{GENERATOR}" not in str(key))
    if names:
        raise LunaError(f"{folder} does not fit the model, {problem}: {shortened(names)}")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(plain_file(path).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        reason: object = "not a JSON object"
    except (OSError, ValueError, RecursionError) as error:
        reason = error
    raise LunaError(f"{path} cannot be read ({reason}): give the folder of save_pretrained")


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        files = _read_object(index).get("weight_map")
        names = sorted(set(map(str, files.values()))) if isinstance(files, dict) else [""]
        if not all(re.fullmatch(r"[\w-][\w.-]*\.safetensors", name) for name in names):
            raise LunaError(f"{index} names files that are no safetensors of this folder")
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors.update(load_file(plain_file(folder / name)))
        except (SafetensorError, OSError) as error:
            raise LunaError(
                f"{folder / name} cannot be read ({error}): save the model again"
            ) from error
    return tensors
