"""Checks the product's rooms against its import graph: their own words, and that nothing goes in circles."""

import ast
import re
import tomllib

import pytest

from tests.support.repository.import_graph import (
    PACKAGES,
    ROOT,
    circles,
    file_graph,
    folder_graph,
    imported,
    modules,
    room_of,
)
from tests.support.repository.rooms import SENTENCES, docstring_file, ends_with, expected

# From the names of the files alone: each worker collects all tests, and reading every import takes seconds.
ROOMS = [docstring_file(room) for room in dict.fromkeys(map(room_of, modules()))]


@pytest.fixture(scope="module")
def sentences():
    return expected()


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: path.parent.name)
def test_a_room_says_truly_who_imports_it_and_what_it_imports(path, sentences):
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert ends_with(docstring) == sentences[path], "python -m tests.support.repository.rooms writes it"


def unknown_words(docstring, files, source):
    """Returns the words between backticks that are no file or folder of a room, and are not defined in it."""
    defined = set(re.findall(r"\b(?:def|class) (\w+)|^\s*(\w+)\s*(?::[^=\n]*)?=", source, re.MULTILINE))
    names = set(files).union(*defined)
    return [word for word in re.findall(r"`([a-z_]+)`", SENTENCES.sub("", docstring)) if word not in names]


@pytest.mark.parametrize("path", [path for path in ROOMS if "_headgate" not in path.parent.name], ids=str)
def test_a_room_names_its_own_files(path):
    """A name of another room has its package before it: `gateway.bridges.bridges`."""
    inside = sorted(path.parent.rglob("*.py"))
    files = {one.stem for one in path.parent.iterdir()}
    source = "\n".join(one.read_text("utf-8") for one in inside)
    assert unknown_words(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "", files, source) == []


def test_words_of_a_room_are_found():
    source = "def f():\n    a: int = 1\nb = 2\n"
    assert unknown_words(
        "`f`, `a`, `b`, `g`, `gone`, `x.y`, `Gone`\n\nImported by: none.\nImports: none.", {"g"}, source
    ) == ["gone"]


def test_no_files_import_each_other_in_a_circle():
    """A file can be read after those that it imports; imports for types alone count too."""
    assert circles(file_graph()) == []


def test_no_folders_import_each_other_in_a_circle():
    """A folder is above or below another one, and a folder inside another is so too."""
    assert circles(folder_graph(file_graph())) == []


def test_the_rooms_of_every_package_are_floors():
    """Import-linter holds an order of all rooms and files of each folder that has rooms."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    ordered = {name for one in contracts if one.get("exhaustive") for name in one["containers"]}
    assert {room.rpartition(".")[0] for room in folder_graph(file_graph()) if "." in room} - ordered == set()


def test_the_architecture_names_every_room():
    """The page names all packages and their rooms, and no file that is not there."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert [room for room in folder_graph(file_graph()) if f"{room.replace('.', '/')}/" not in text] == []
    files = re.findall(rf"(?<![\w/])(?:{'|'.join(PACKAGES)})/[\w/]+\.py\b", text)
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_circles_are_found_wherever_the_import_stands():
    known = dict.fromkeys(["a", "a.b", "c"])
    late = "def f():\n    from a import b"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import c"
    assert imported(ast.parse(late), known) == {"a.b"}
    assert imported(ast.parse(typed), known) == {"c"}
    assert imported(ast.parse("from a import name"), known) == {"a"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]
