"""The import graph of the product, read from its source: what each file imports, wherever in the file it does so.

Imports in functions and under `TYPE_CHECKING` count as well: a reader has to follow them like all others.
"""

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("gateway", "adapters", "store", "controller", "spark", "pyspark_headgate", "amqtt_headgate")


def modules() -> dict[str, Path]:
    """Returns the file of every module of the product."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(tree: ast.AST, known: Mapping[str, object]) -> set[str]:
    """Returns the known modules that a file imports. A name stands for the module that has it."""
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            module = name if name in known else name.rpartition(".")[0]
            found |= {module} & known.keys()
    return found


@functools.cache
def file_graph() -> dict[str, set[str]]:
    """Returns the modules that each module imports, without itself."""
    files = modules()
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in files.items()}
    return {module: imported(tree, files) - {module} for module, tree in trees.items()}


def folder_graph(files: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Returns the folders that each folder imports from, without itself; `__init__` belongs to its folder."""
    rooms = {module: room_of(module) for module in files}
    graph: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for module, targets in files.items():
        graph[rooms[module]] |= {rooms[target] for target in targets} - {rooms[module]}
    return graph


def room_of(module: str) -> str:
    """Returns the folder that a module lies in."""
    return module if (ROOT / Path(*module.split("."))).is_dir() else module.rpartition(".")[0]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one node (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            component, stack[start:] = sorted(stack[start:]), []
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
