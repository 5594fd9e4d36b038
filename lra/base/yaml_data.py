"""YAML of somebody else: lists of aliases of lists would make a small file a huge one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lra.base.disk import plain_file


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            name = self.peek_event().anchor
            if not isinstance(self.anchors.get(name), yaml.ScalarNode):
                raise ValueError(f"*{name} stands for no text or number: write out what it is")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    return yaml.load(plain_file(path).read_text(encoding="utf-8"), _Loader)
