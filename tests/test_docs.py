"""What README and docs show works as printed: Python blocks run, commands parse, links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli.verbs import verbs_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run_in_order(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=lambda page: page.name)
def test_commands_parse(page):
    _, verbs = verbs_of()
    commands = [line for block in blocks(page, "bash") for line in block.splitlines() if line.startswith("corral ")]
    for command in commands:
        _, verb, *words = shlex.split(command, comments=True)
        verbs[verb][0].parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if "://" not in target and not (page.parent / target).exists()]


def test_make_targets_that_the_docs_name_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {
        name for page in PAGES for name in re.findall(r"`?make ([a-z][a-z0-9-]*)\b`?", "\n".join(blocks(page, "bash")))
    }
    assert named and all(re.search(rf"^{name}:", makefile, flags=re.M) for name in named)
