"""Give a trained softmax model linear attention: `lra convert` in a clone.

python convert.py stage=teacher task=sst2 model=bert-base
python convert.py task=sst2 attention=luna model=bert-base
python convert.py task=imagenet1k model=vit-b16 recipe=paper-vit data.path=<folder>

Without a network: model.path=<folder> data.path=<folder>.
"""
# Hydra's shell completion looks for the word @hydra.main in this file; it is in lra/cli.py.

import sys

from lra.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
