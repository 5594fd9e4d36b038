"""The words of a run as its record has them, without what may be private."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from lra.base import groups

if TYPE_CHECKING:
    from omegaconf import DictConfig


def given_words() -> list[str]:
    """The words of Hydra's present job as they were typed: ${oc.env:KEY} is not looked up."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    words = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return cast(list[str], words)


def typed(command: str, settings: Sequence[str], callbacks: Mapping[str, Any] = {}) -> str:
    """Write the command with its public settings; of a sweep, that of the one job."""
    folder = os.environ.get(groups.VARIABLE)
    words = ["lra", *(["--config-dir", folder] if folder else []), command]
    return shlex.join([*words, *public(settings, callbacks)])


def public(words: Iterable[str], callbacks: Mapping[str, Any]) -> list[str]:
    """Leave out the words for loggers and for callbacks that move no result: they decide nothing,
    and an address or a key of theirs may be a secret."""
    hidden = ["logger", *(f"callbacks.{name}" for name in moving_nothing(callbacks))]
    return [word for word in words if not any(_sets(word, place) for place in hidden)]


def callbacks_of(config: DictConfig) -> dict[str, Any]:
    """The callbacks of a composed config; nothing in them is looked up."""
    from omegaconf import OmegaConf

    callbacks = config.get("callbacks")  # a failed job's config may have none
    made = OmegaConf.to_container(callbacks, resolve=False) if callbacks else {}
    return cast(dict[str, Any], made)


def moving_nothing(callbacks: Mapping[str, Any]) -> Iterator[str]:
    """The names of callbacks whose files say `moves_results: false`."""
    for name, options in callbacks.items():
        if isinstance(options, Mapping) and options.get("moves_results") is False:
            yield name


def without_private(config: DictConfig) -> DictConfig:
    """A composed config as it may be kept: without loggers, callbacks that move nothing, and the
    words for them."""
    from omegaconf import OmegaConf, flag_override

    kept, callbacks = copy.deepcopy(config), callbacks_of(config)
    with flag_override(kept, ["struct", "readonly"], [False, False]):
        kept.logger = {}
        for name in moving_nothing(callbacks):
            del kept.callbacks[name]
        words = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        kept.hydra.overrides.task = public(cast(list[str], words), callbacks)
        kept.hydra.job.override_dirname = ""
    return kept


def _sets(word: str, place: str) -> bool:
    """Whether a word sets a place, what is below it, or with `{..}` all that is above it."""
    key, _, value = word.lstrip("+~").partition("=")
    above = place.startswith(f"{key}.") and "{" in value
    return key == place or key.startswith(f"{place}.") or key.startswith(f"{place}@") or above
