"""Train one attention on one Long Range Arena task: `lra train`, from a clone.

python train.py task=listops attention=luna
"""
# Hydra's shell completion looks for the word @hydra.main in this file; it is in lra/cli.py.

import sys

from lra.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
