"""The parser of a command that Hydra does not read."""

from __future__ import annotations

import argparse
from typing import NoReturn

from lra.base.errors import UserError


class Parser(argparse.ArgumentParser):
    """Argparse makes those of the commands below it of the same class."""

    def error(self, message: str) -> NoReturn:
        """Refuse words in one sentence, as all mistakes are: argparse's own begins with the usage,
        several lines of it, and ends the process."""
        raise UserError(f"{message.removeprefix('argument ')}; {self.prog} --help lists them all")
