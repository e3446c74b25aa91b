"""The two sentences at the end of a room's docstring: who imports it, and what it imports.

`python -m tests.support.repository.rooms` writes them into every `__init__`; a tidy test says where they are wrong.

A room's subfolders belong to it. Rooms of the same package are named without the package. Of more rooms of one package
or subject than `NAMED_MAX` none is named: `store.*` or `coap.*` stands for them.
"""

import ast
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from tests.support.repository.import_graph import ROOT, file_graph, folder_graph

NAMED_MAX = 6  # rooms of one package that are named one by one
WIDTH = 120
SENTENCES = re.compile(r"Imported by: [^:]*\.\nImports: [^:]*\.\Z")


def inside(room: str, other: str) -> bool:
    """Returns whether a room is another or lies below it."""
    return room == other or room.startswith(f"{other}.")


def called(other: str, room: str) -> str:
    """Returns the name by which a room's docstring knows another one.

    Rooms outside the subject of `room` are named by package and subject; packages know each other as packages.
    """
    if "." not in room:
        return other.partition(".")[0]
    package, subject = room.split(".")[:2]
    parts = other.split(".")
    if parts[0] == package:
        shown = parts[1:] if parts[1:2] == [subject] else parts[1:2]
        return ".".join(shown) or package
    return ".".join(parts[:2])


def listed(others: Iterable[str], room: str) -> str:
    """Returns rooms as a docstring lists them: those of its own package first, then by name."""
    package, *subject = room.split(".")[:2]
    of_package: dict[str, set[str]] = {}
    for other in others:
        of_package.setdefault(other.partition(".")[0], set()).add(called(other, room))
    names = []
    for owner, rooms in sorted(of_package.items(), key=lambda item: (item[0] != package, item[0])):
        own = all(name.partition(".")[0] in subject for name in rooms)
        names += sorted(rooms) if len(rooms) <= NAMED_MAX else [f"{subject[0] if own else owner}.*"]
    return ", ".join(names) or "none"


def sentences(room: str, folders: dict[str, set[str]]) -> str:
    """Returns both sentences of a room, each wrapped."""
    imports = {to for one, targets in folders.items() if inside(one, room) for to in targets if not inside(to, room)}
    by = {one for one, targets in folders.items() if not inside(one, room) and any(inside(to, room) for to in targets)}
    lines = [f"Imported by: {listed(by, room)}.", f"Imports: {listed(imports, room)}."]
    return "\n".join(textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in lines)


def expected() -> dict[Path, str]:
    """Returns what each room's docstring must end with, by the room's `__init__`."""
    folders = folder_graph(file_graph())
    return {docstring_file(room): sentences(room, folders) for room in folders}


def docstring_file(room: str) -> Path:
    """Returns the file whose docstring is the room's."""
    return ROOT / Path(*room.split("."), "__init__.py")


def ends_with(docstring: str) -> str:
    """Returns the two sentences that a docstring ends with, or nothing."""
    found = SENTENCES.search(docstring)
    return found[0] if found else ""


def write() -> None:
    """Writes the sentences into the docstring of every room that has others or none."""
    for path, right in expected().items():
        text = path.read_text("utf-8")
        docstring = ast.get_docstring(ast.parse(text)) or ""
        if ends_with(docstring) == right:
            continue
        body = SENTENCES.sub("", docstring).rstrip()
        head = text.index('"""')
        end = text.index('"""', head + 3)
        path.write_text(f'{text[:head]}"""{body}\n\n{right}\n{text[end:]}', "utf-8")


if __name__ == "__main__":
    write()
