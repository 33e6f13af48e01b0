"""The snippets of docs/python.md, run one after the other."""

from __future__ import annotations

import importlib.util
import re

import pytest
from conftest import ROOT

TEXT = (ROOT / "docs/python.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def needs(snippet: str) -> str | None:
    found = re.match(r"# needs (\w+)\n", snippet)
    return found[1] if found else None


def test_the_snippets_run(shared_daemon, monkeypatch):
    monkeypatch.setenv("EMBCACHE_SOCKET_DIR", shared_daemon.directory)
    assert len(SNIPPETS) >= 8
    shared: dict = {}
    for snippet in SNIPPETS:
        module = needs(snippet)
        if module is None or importlib.util.find_spec(module) is not None:
            exec(compile(snippet, "docs/python.md", "exec"), shared)


@pytest.mark.parametrize("index", range(len(SNIPPETS)))
def test_every_snippet_compiles(index):
    compile(SNIPPETS[index], "docs/python.md", "exec")
