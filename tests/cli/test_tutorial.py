"""The tutorial is correct: every block is typed into a real shell, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.cli.terminal import in_terminal
from tests.docs.test_docs import DOCS, FENCE, matches

PAGE = DOCS / "tutorial" / "approve-a-payment.md"
TYPED = re.compile(r"<!-- typed: (?P<keys>.+?) -->\s*\Z")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the page is typed into bash")
def test_the_tutorial_shows_what_it_says(tmp_path: Path) -> None:
    tools, folder = tmp_path / "bin", tmp_path / "shop"
    tools.mkdir()
    folder.mkdir()
    for name, what in (("python", ""), ("amends", "-m amends ")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what}"$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    env = environment(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}", NO_COLOR="1", TERM="xterm")
    text = PAGE.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    pairs = [(one, two) for one, two in pairwise(fences) if (one["lang"], two["lang"]) == ("sh", "text")]
    assert len(pairs) == sum(fence["lang"] == "sh" for fence in fences), "every block says what it shows"
    for typed, shown in pairs:
        keys = TYPED.search(text[: typed.start()])
        answers = [("[y/N]", f"{keys['keys']}\n")] if keys else []
        seen = in_terminal(["bash", "-c", typed["body"]], cwd=folder, env=env, answers=answers, width=160)
        assert matches(shown["body"], seen.text), f"{typed['body']}shows\n{seen.text}"
