"""Checks that what the documents name is there: files, pages, their sections, and sentences of the code."""

import ast
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import config
from tests.support.repository import import_graph

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)\s]*)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


SECTIONS = frozenset(field.name for field in msgspec.structs.fields(config.Config))
KEY = re.compile(rf"((?:{'|'.join(SECTIONS)})(?:\.[\w-]+)+)(?: = .*)?")
# Modules and calls of former versions, of which the changelog tells.
FORMER = {"gateway.message", "gateway.errors", "gateway.app", "store.kv_get"}
CLIENT = {"store.keys.get"}  # a call of a store's client, which is no key


def top_folders() -> list[str]:
    """Returns the folders at the top of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({line.split("/", 1)[0] for line in listed.splitlines() if "/" in line})


PATH = re.compile(rf"(?<![\w./$-])(?:{'|'.join(map(re.escape, top_folders()))})/[\w./*-]*")


def paths_in(text: str) -> list[str]:
    """Returns paths between backticks, relative to the root of the repository; in a block of code, all of it counts.

    A file has its suffix, a folder a slash behind it: without either it may be a topic, `store/log/bytes`.
    """
    pieces = [*CODE.findall(FENCE.sub("", text)), *FENCE.findall(text)]
    words = [word.rstrip(".") for piece in pieces for word in PATH.findall(piece)]
    return [word for word in words if word.endswith("/") or "." in word.rpartition("/")[2]]


def anchors_of(page: Path) -> set[str]:
    """Returns the names of a page's sections, as its links spell them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_paths_are_found_where_they_stand():
    text = "`gateway/a.py`, gateway/b.py, `cat tests/c.py -n`, `x/docs/d.md`, `store/`, `store/e/`, `store/log/bytes`"
    block = "```mermaid\na[store/f.py<br/>text]\n```"
    assert paths_in(f"{text}\n{block}\n") == ["gateway/a.py", "tests/c.py", "store/", "store/e/", "store/f.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_is_there(page):
    missing = [path for path in paths_in(page.read_text("utf-8")) if not list(ROOT.glob(path))]
    assert missing == [], "a path is written relative to the repository's root"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_page_and_a_section(page):
    dead = []
    for link in LINK.findall(page.read_text("utf-8")):
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (section and section not in anchors_of(target)):
            dead.append(link)
    assert dead == []


def is_key(value: Any, path: list[str]) -> bool:
    """Returns whether a configuration has a key. Users, bridges and their like are called NAME in pages."""
    if not path:
        return True
    if isinstance(value, Mapping):
        return path[0].isupper() or is_key(value.get(path[0]), path[1:])
    return path[0] in getattr(value, "__struct_fields__", ()) and is_key(getattr(value, path[0]), path[1:])


def keys_in(text: str) -> set[str]:
    """Returns the names between backticks that begin like a section of the configuration, without modules.

    An adapter's module is named by its path: with dots it could be taken for a key.
    """
    found = {match[1] for code in CODE.findall(FENCE.sub("", text)) if (match := KEY.fullmatch(code))}
    return {name for name in found if name.startswith("adapters.") or not is_module(name)}


def is_module(name: str) -> bool:
    """Returns whether a name is a module of the product, a room, or a definition in one."""
    modules = import_graph.modules()
    module, _, definition = name.rpartition(".")
    return name in modules or (
        module in modules and re.search(rf"\b{definition}\b", modules[module].read_text("utf-8")) is not None
    )


def test_keys_are_found_and_modules_are_none():
    text = (
        "`adapters.mqtt.gone = false`, `gateway.port.adapter`, `gateway.max_message_bytes`, store.gone, `x.store.gone`"
    )
    assert keys_in(text) == {"adapters.mqtt.gone", "gateway.max_message_bytes"}
    assert keys_in("`adapters.mqtt.messages.sparkplug`") == {"adapters.mqtt.messages.sparkplug"}


@pytest.fixture(scope="module")
def settings() -> config.Config:
    return config.load(None, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_that_a_page_names_is_in_the_configuration(page, settings):
    keys = keys_in(page.read_text("utf-8")) - FORMER - CLIENT
    assert sorted(key for key in keys if not is_key(settings, key.split("."))) == []


def test_the_map_names_every_page():
    """A page that docs/README.md does not link is found by nobody."""
    named = set(LINK.findall((ROOT / "docs" / "README.md").read_text("utf-8")))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert pages - named == {"README.md"}


def test_every_decision_has_a_number_of_its_own_and_says_it():
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(record.name.partition("-")[0]) for record in records]
    assert len(set(numbers)) == len(numbers)
    titles = {record.name: record.read_text("utf-8").partition("\n")[0] for record in records}
    assert [name for name, title in titles.items() if not re.match(rf"# 0*{int(name[:4])}[.:] ", title)] == []


TOLD = re.compile(r"^\| (`.+?`(?:, `.+?`)*) \|", re.MULTILINE)  # the first cell of a row, if it is all sentences
VARIES = re.compile(r"\.\.\.|\d+")  # in a sentence that a page quotes
QUOTED_CHARS_MIN = 4  # of a piece between two parts that vary


def sentences_in(section: str) -> list[list[str]]:
    """Returns the pieces of each sentence that the tables of a section quote, without the parts that vary."""
    sentences = [one for cell in TOLD.findall(section) for one in CODE.findall(cell)]
    pieces = [[piece.strip() for piece in VARIES.split(one)] for one in sentences]
    return [[piece for piece in one if len(piece) >= QUOTED_CHARS_MIN] for one in pieces]


def texts_of(path: Path) -> list[str]:
    """Returns the texts of a file of code; of one with parts that vary what stands between those, line by line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("\n".join(part.value for part in node.values if isinstance(part, ast.Constant)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_a_sentence_is_found_in_its_pieces():
    section = "| `a topic ... is full: 12 records`, `gone` | do `that` |\n| not `this` | |\n"
    assert sentences_in(section) == [["a topic", "is full:", "records"], ["gone"]]


def test_the_sentences_that_the_page_of_the_job_explains_are_those_of_the_code():
    page = (ROOT / "docs" / "spark-operations.md").read_text("utf-8")
    _, _, section = page.partition("## What the job says")
    sentences = sentences_in(section.partition("**Other things")[0])
    assert len(sentences) > 20
    places = [ROOT / "gateway" / "cli", ROOT / "spark", ROOT / "store" / "remoting", ROOT / "store" / "base"]
    texts = [text for place in places for path in sorted(place.rglob("*.py")) for text in texts_of(path)]
    missing = [piece for sentence in sentences for piece in sentence if not any(piece in text for text in texts)]
    assert missing == [], "no message of the code has these words any more"
