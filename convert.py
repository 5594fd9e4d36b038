"""Give a trained softmax model linear attention, on a GLUE task or on images.

python convert.py stage=teacher task=sst2 model=bert-base
python convert.py task=sst2 attention=luna model=bert-base
python convert.py task=imagenet1k model=vit-b16 recipe=paper-vit data.path=<folder>

Without a network: model.path=<folder> data.path=<folder>.
"""

from __future__ import annotations

import sys

import hydra
from omegaconf import DictConfig

from lra.compose import guard


@hydra.main(version_base="1.3", config_path="configs/convert", config_name="convert")
def main(cfg: DictConfig) -> None:
    def convert() -> None:
        from lra.conversion import check, convert

        convert(check(cfg))

    if code := guard(convert):
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(guard(main))
