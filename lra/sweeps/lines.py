"""The line with which Hydra starts a job: by the words that tell it from the others."""

from __future__ import annotations

import logging
import re
import sys

JOB = re.compile(r"\t#(\d+) : (.*)", re.S)


class Formatter(logging.Formatter):
    """Hydra's `#3 : task=listops attention=luna seed=1 ...` without what the command says of all
    jobs: its words that stand in a job as they were typed."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not (job := JOB.fullmatch(text)):
            return text
        number, words = job.groups()
        own = [word for word in words.split() if word not in sys.argv]
        return f"#{number} begins{': ' if own else ''}{' '.join(own)}"
