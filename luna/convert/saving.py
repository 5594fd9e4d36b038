"""Loading what `save_pretrained` wrote, and small files of the feature maps alone.

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

from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import host
from luna.convert.layers import shortened
from luna.convert.states import GENERATOR, write_whole
from luna.convert.swap import PHI, convert, described, feature_maps, weights_hash


def load(folder: str | Path) -> Any:
    """The converted model in `folder`, in eval mode."""
    folder = Path(folder)
    transformers = host.transformers()
    config = _read_config(folder)
    tensors = _read_tensors(folder)
    phi = {key: tensor for key, tensor in tensors.items() if PHI in key}
    weights = {key: tensor for key, tensor in tensors.items() if PHI not in key}

    description = config["luna"]
    cls = getattr(transformers, (config.get("architectures") or [""])[0], None)
    if cls is None:
        raise LunaError(
            f"{folder}/config.json names no architecture of transformers: save the model again "
            "with save_pretrained"
        )
    plain = transformers.AutoConfig.from_pretrained(
        folder, attn_implementation=description["host_implementation"]
    )
    del plain.luna
    model, report = cls.from_pretrained(
        None, config=plain, state_dict=weights, output_loading_info=True
    )
    for what in ("missing", "unexpected", "mismatched"):
        _check_keys(folder, what, report[f"{what}_keys"])
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return _restore(model, description, phi, source=folder, inplace=True).eval()


def save_adapter(model: nn.Module, path: str | Path) -> None:
    """Save the feature maps of a model whose host weights are still the teacher's (stage 1 keeps
    them), for :func:`load_adapter` on the teacher."""
    from safetensors.torch import save

    description = described(model)
    if weights_hash(model) != description["teacher"]:
        raise LunaError(
            "the host's weights have changed since conversion (finetuning), and an adapter has "
            "feature maps alone: save the whole model with save_pretrained"
        )
    tensors = {
        f"{layer}{PHI}{name}": tensor.detach().cpu().contiguous().clone()
        for layer, attention in feature_maps(model).items()
        for name, tensor in attention.state_dict().items()
    }
    content = save(tensors, metadata={"luna": json.dumps(description)})
    write_whole(Path(path), lambda partial: partial.write_bytes(content))


def load_adapter(model: nn.Module, path: str | Path) -> Any:
    """A converted copy of the teacher `model` with the feature maps of an adapter file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get("luna")
            phi = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise LunaError(f"{path} cannot be read ({error}): save the adapter again") from error
    if metadata is None:
        raise LunaError(f"{path} is not a file of luna.convert.save_adapter: give one that is")
    description = json.loads(metadata)
    if weights_hash(model) != description["teacher"]:
        raise LunaError(
            f"{path} was made for another model: its feature maps were fitted to weights with "
            f"hash {description['teacher'][:12]}, this model's is {weights_hash(model)[:12]}"
        )
    return _restore(model, description, phi, source=path, inplace=False)


def _restore(
    model: nn.Module,
    description: dict[str, Any],
    phi: dict[str, Tensor],
    *,
    source: str | Path,
    inplace: bool,
) -> Any:
    """The model, converted as `description` says, with the feature maps of `source`."""
    student = convert(
        model,
        description["method"],
        layers=description["layer_numbers"],
        inplace=inplace,
        **{key: description[key] for key in ("max_len", "profile", "seed", "context_dropout")},
        **description["options"],
    )
    _fill(student, phi, source=source)
    described(student).update({key: description[key] for key in ("teacher", "stage")})
    return student


def _fill(model: nn.Module, phi: dict[str, Tensor], *, source: str | Path) -> None:
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
    _check_keys(source, "mismatched", (k for k in both if expected[k].shape != saved[k].shape))
    _check_keys(source, "missing", filter(_required, expected.keys() - saved.keys()))
    _check_keys(source, "unexpected", filter(_required, saved.keys() - expected.keys()))
    for layer, attention in maps.items():
        start = layer + PHI
        attention.load_state_dict(
            {key.removeprefix(start): t for key, t in saved.items() if key.startswith(start)}
        )


def _required(key: str) -> bool:
    return not key.partition(PHI)[2].startswith(GENERATOR)  # there after a generator was used


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.|$)", name))


def _check_keys(source: str | Path, problem: str, keys: Iterable[Any]) -> None:
    """Refuse tensors that have this problem."""
    names = sorted(str(key) for key in keys)
    if names:
        raise LunaError(f"{source} does not fit the model, {problem}: {shortened(names)}")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise LunaError(f"{path} is missing: give the folder that save_pretrained wrote")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LunaError(f"{path} is damaged ({error}): save the model again") from error
    if not isinstance(config, dict) or "luna" not in config:
        raise LunaError(
            f"{folder} is not a converted model (config.json has no 'luna' block): load it with "
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
            raise LunaError(
                f"{folder / name} cannot be read ({error}): save the model again"
            ) from error
    return tensors
