"""Checks what a linter cannot: that the words in the repository agree with each other and with the code."""

import ast
import io
import itertools
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.base.config_reader import describe
from gateway.cli import commands as cli
from gateway.config import config
from gateway.security.limits_settings import LimitsConfig
from tests.support.repository import import_graph

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (*import_graph.PACKAGES, "deploy")
LINES_SOFT_MAX = 450
FILES_IN_FOLDER = 20
# Modules and functions that run what they read.
RUNNING_DATA = frozenset({"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "eval", "exec", "compile"})
# Files that read better whole, and how long they may be.
LONGER = {
    "adapters/http/connection.py": 494,  # the requests of both versions to the gateway, and its answers
    "gateway/ownership/cluster_owners.py": 480,  # every way in which a name changes its owner
    "controller/raft/core.py": 490,  # every message in every role
    "store/log/log.py": 520,  # one log: its segments, what is written, read, cut and recovered
    "store/replication/master.py": 580,  # the rules of one epoch, which only together keep what they promise
}


def tracked() -> list[Path]:
    """Returns every text file that belongs to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:1024]]


FILES = tracked()
CODE = [path for path in FILES if path.suffix == ".py"]
MODULES = [path for path in FILES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES]
TESTS = [path for path in CODE if path.is_relative_to(ROOT / "tests")]
SUPPORT = [path for path in TESTS if path.is_relative_to(ROOT / "tests" / "support")]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def where(path: Path, pattern: str, flags: int = 0) -> list[str]:
    """Returns the lines of a file that hold a pattern."""
    lines = path.read_text("utf-8").splitlines()
    return [f"{name(path)}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if re.search(pattern, line, flags)]


def others() -> list[Path]:
    """Returns all files without this one, whose patterns would find themselves, and without the lock, which is
    generated.
    """
    return [path for path in FILES if path != Path(__file__).resolve() and path.name != "requirements.lock"]


def test_nothing_speaks_of_the_machine_it_was_written_on():
    assert [hit for path in others() for hit in where(path, r"/work/|/tmp/|/root/|/home/\w")] == []


def test_only_packages_list_what_they_export():
    """`__all__` stands in an `__init__` alone; elsewhere an underscore says what is private."""
    plain = [path for path in CODE if path.name != "__init__.py"]
    assert [hit for path in plain for hit in where(path, r"^__all__\b")] == []


def test_nothing_is_left_to_do():
    assert [hit for path in others() for hit in where(path, r"\b(TODO|FIXME|XXX|HACK)\b")] == []


def test_no_package_registry_is_named():
    pattern = r"pypi\.org|pythonhosted|--index-url\b|--extra-index-url|artifactory|nexus"
    found = [hit for path in FILES if path != Path(__file__).resolve() for hit in where(path, pattern)]
    assert [hit for hit in found if "--no-emit-index-url" not in hit] == []


def test_no_noqa_covers_a_whole_file():
    assert [
        hit for path in MODULES for hit in where(path, r"#\s*(ruff|flake8):\s*noqa|#\s*mypy:\s*ignore-errors")
    ] == []


def test_every_noqa_names_its_rule():
    assert [hit for path in MODULES for hit in where(path, r"#\s*noqa(?!:)|#\s*type:\s*ignore(?!\[)")] == []


def test_nothing_forks_without_exec():
    """Code between the two, in a process with threads, can meet a lock that nobody will ever give back."""
    pattern = r"\bos\.fork\b|\bmultiprocessing\b|\bpreexec_fn\b|\bProcessPoolExecutor\b"
    assert [hit for path in MODULES for hit in where(path, pattern)] == []


def nodes_of(source: str) -> list[ast.AST]:
    """Returns the nodes of a module's tree, the module first."""
    return list(ast.walk(ast.parse(source)))


def runs_data(nodes: list[ast.AST]) -> list[int]:
    """Returns the lines that import such a module or call such a function."""
    found = []
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name.partition(".")[0] for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0]]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [node.func.id]
        found += [node.lineno for one in names if one in RUNNING_DATA]
    return found


def test_no_data_can_run_code(findings):
    """Messages between processes, and files, are decoded into types (msgspec), never executed."""
    assert findings["runs data"] == {}
    assert runs_data(nodes_of("import json, pickle\nfrom marshal import loads\neval('1')")) == [1, 2, 3]


def says_nothing(nodes: list[ast.AST]) -> list[int]:
    """Returns the first line of a module that has code and no docstring."""
    module = nodes[0]
    assert isinstance(module, ast.Module)
    return [1] if module.body and not ast.get_docstring(module) else []


def test_every_module_says_what_it_is(findings):
    assert findings["says nothing"] == {}
    assert [says_nothing(nodes_of(source)) for source in ("a = 1", "'A.'\na = 1", "")] == [[1], [], []]


QUESTION_WORDS = frozenset(["What", "Who", "Whom", "Whose", "Which", "Whether", "How", "Where", "When", "Why"])


# Words of sentences without an actor or a thing: "Nobody is served any more", "Of one protocol", "Has the log read".
VAGUE_WORDS = frozenset(
    re.findall(
        r"\w+",
        "It Of Nobody Somebody Something Nothing Everybody Everything Whoever Whatever Those These There None Some "
        "Another Has Have Let That So As Is Until Since From With By On In At To For No",
    )
)


def docstrings_that_begin(nodes: list[ast.AST], words: frozenset[str]) -> list[int]:
    """Returns the lines of docstrings whose first word is one of some."""
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    having = [node for node in nodes if isinstance(node, documented) and node.body]
    firsts = [(node.body[0], (ast.get_docstring(node) or "-").split()[0].rstrip(".,:;")) for node in having]
    return [statement.lineno for statement, first in firsts if first in words]


def test_no_docstring_begins_with_a_question_word(findings):
    """A reader learns from the first words what a function does: "Returns whether ...", not "Whether ..."."""
    assert findings["question word"] == {}
    bad, good = "def f():\n    'Whether it is.'", "def f():\n    'Returns whether it is.'"
    assert docstrings_that_begin(nodes_of(bad), QUESTION_WORDS) == [2]
    assert docstrings_that_begin(nodes_of(good), QUESTION_WORDS) == []


def test_a_docstring_of_the_product_begins_with_a_verb_or_a_noun(findings):
    assert findings["vague word"] == {}
    bad, good = "class A:\n    'Nothing.'", "class A:\n    'An empty log.'"
    assert docstrings_that_begin(nodes_of(bad), VAGUE_WORDS) == [2]
    assert docstrings_that_begin(nodes_of(good), VAGUE_WORDS) == []


# Words that end like a verb in the third person, and are none.
NO_VERBS = (
    "Bytes|Channels|Clients|Clusters|Codes|Connections|Controllers|Credentials|Events|Faults|Findings|Frames|"
    "Has|Headers|Its|Keys|Latencies|Messages|Microseconds|Milliseconds|Nodes|Others|Packets|Pass|Passwords|"
    "Paths|Positions|Properties|Publishers|Responses|Seconds|Sessions|Sizes|Sockets|Status|Sums|Terms|Tests|"
    "This|Threads|Timers|Tokens|Topics|Unless|Values"
)


def functions_without_a_verb(nodes: list[ast.AST]) -> list[int]:
    """Returns the lines of functions' docstrings that do not begin with a verb in the third person, nor with "See".

    A property is named like a value, and a test like a sentence: their docstrings may be anything.
    """
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [one for one in functions if not one.name.startswith("test_")]
    plain = [one for one in named if not any("property" in ast.unparse(mark) for mark in one.decorator_list)]
    firsts = [(one.body[0], (ast.get_docstring(one) or "See").split()[0].rstrip(".,:;")) for one in plain]
    is_verb = re.compile(rf"See|(?!(?:{NO_VERBS})$)[A-Z][a-z-]+s")
    return [statement.lineno for statement, first in firsts if not is_verb.fullmatch(first)]


def test_a_docstring_of_a_function_begins_with_a_verb(findings):
    """The command line is left out: it prints the docstrings of its commands, which are imperatives."""
    found = findings["no verb"]
    assert {path: lines for path, lines in found.items() if not path.startswith("gateway/cli/")} == {}
    bad = "def f():\n    'The peer is there.'\ndef g():\n    'Bytes of the peer.'"
    good = "def f():\n    'Notes a sign of life.'\n@property\ndef g():\n    'The frame.'\ndef h():\n    'See `F`.'"
    assert (functions_without_a_verb(nodes_of(bad)), functions_without_a_verb(nodes_of(good))) == ([2, 4], [])


# "Looks again; when to come back" leaves the reader to guess that this is returned, or a condition of what follows.
QUESTION_BEHIND = re.compile(r"; (?:and )?(?:whether|how|which|when|where|why|what)\b")


def functions_that_ask(nodes: list[ast.AST]) -> list[int]:
    """Returns the lines of functions' docstrings whose first line has a question word behind a semicolon."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    firsts = [(node.body[0], (ast.get_docstring(node) or "").partition("\n")[0]) for node in functions]
    return [statement.lineno for statement, first in firsts if QUESTION_BEHIND.search(first)]


def test_a_function_says_in_a_sentence_what_it_returns(findings):
    assert findings["asks"] == {}
    bad = "def f():\n    'Looks; when to come again.'\ndef g():\n    'Puts it; and whether it is new.'"
    good = "def f():\n    'Looks, and returns when to come again.'"
    assert (functions_that_ask(nodes_of(bad)), functions_that_ask(nodes_of(good))) == ([2, 4], [])


# Checks of a module's nodes, and the files that they are of.
CHECKS: dict[str, tuple[Callable[[list[ast.AST]], list[int]], frozenset[Path]]] = {
    "runs data": (runs_data, frozenset(MODULES)),
    "says nothing": (says_nothing, frozenset(MODULES)),
    "question word": (partial(docstrings_that_begin, words=QUESTION_WORDS), frozenset(CODE)),
    "vague word": (partial(docstrings_that_begin, words=VAGUE_WORDS), frozenset(MODULES)),
    "no verb": (functions_without_a_verb, frozenset([*MODULES, *TESTS])),
    "asks": (functions_that_ask, frozenset(MODULES)),
}


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, list[int]]]:
    """Returns the lines found, by check and file: a tree costs more than its checks, and all trees fill the memory."""
    found: dict[str, dict[str, list[int]]] = {check: {} for check in CHECKS}
    for path in CODE:
        nodes = nodes_of(path.read_text("utf-8"))
        for check, (look, files) in CHECKS.items():
            if path in files and (lines := look(nodes)):
                found[check][name(path)] = lines
    return found


# A comment that begins so hides who acts, or is half a question: "Bytes that a peer may send", not "What it may send".
_HIDING = "what|who|whose|whom|whether|whoever|whatever|nobody|nothing|somebody|something|everybody|everything"
HIDING_COMMENT = re.compile(rf"#[:!]?\s*({_HIDING})\b", re.IGNORECASE)


def comments_that_hide(text: str) -> list[int]:
    """Returns the lines on which a comment begins by one of these words; a comment's second line may."""
    if HIDING_COMMENT.search(text) is None:  # tokens cost a hundred times as much
        return []
    found, before = [], (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            goes_on = before == (row - 1, column)
            if not goes_on and HIDING_COMMENT.match(token.string):
                found.append(row)
            before = token.start
    return found


def test_no_comment_hides_who_acts():
    found = {name(path): comments_that_hide(path.read_text("utf-8")) for path in CODE}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert comments_that_hide("a = 1  # what it has\nb = 2\n# Nobody asks.\n# Whether it is.\nc = '# who'\n") == [1, 3]
    assert comments_that_hide("a = 1  # bytes that it has; nobody else\n# The asker,\n# who waits.\n") == []


def test_files_are_short_enough_to_read():
    lengths = {name(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {path: n for path, n in lengths.items() if n > max(LINES_SOFT_MAX, LONGER.get(path, 0))} == {}
    assert [path for path in LONGER if lengths.get(path, 0) <= LINES_SOFT_MAX] == []


def test_a_folder_has_one_subject():
    """One with more files than these has several; each room says what it is."""
    files = Counter(str(path.parent.relative_to(ROOT)) for path in MODULES)
    assert {folder: n for folder, n in files.items() if n > FILES_IN_FOLDER} == {}


def test_a_folder_of_tests_has_one_subject():
    files = Counter(path.parent for path in TESTS)
    assert {name(folder): n for folder, n in files.items() if n > FILES_IN_FOLDER} == {}
    assert [name(path) for path in CODE if path.parent == ROOT / "tests" / "unit"] == []


def test_no_file_lies_flat_in_tests():
    """Tests lie in the folder of their kind, and code that they share lies in a room of `tests/support`."""
    flat = {path.name for path in FILES if path.parent == ROOT / "tests"}
    assert flat - {"__init__.py", "conftest.py"} == set()
    assert [name(path) for path in SUPPORT if path.parent.name == "support" and path.name != "__init__.py"] == []
    files = Counter(path.parent for path in SUPPORT)
    assert {name(room): n for room, n in files.items() if n > FILES_IN_FOLDER} == {}
    bare = [room for room in files if not (ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))))]
    assert [name(room) for room in bare] == []


# Modules that run the tests of another one again, with a store over the network.
RERUNNING = ROOT / "tests" / "unit" / "store" / "remoting"


def test_no_test_imports_another_one():
    """Code that tests share lies in `tests/support`, and fixtures that they share in a folder's `conftest.py`."""
    found = [hit for path in TESTS for hit in where(path, r"^\s*(?:from|import) (?:tests\.[\w.]*\.)?test_\w+")]
    assert [hit for hit in found if not hit.startswith(f"{name(RERUNNING)}/test_remote_")] == []


def test_tests_import_their_modules_by_full_names():
    """`from tests.sim.joint.joint_log import ...` says where the module lies, and works from every folder."""
    bare = {path.stem for path in TESTS} - {"__init__", "conftest", "config", "tests"} - {path.stem for path in MODULES}
    pattern = rf"^\s*(?:from|import) (?:{'|'.join(sorted(one for one in bare if not one.startswith('test_')))})\b(?!\.)"
    assert [hit for path in TESTS for hit in where(path, pattern)] == []


# A limit whose name says of what and in which unit, or that a specification's field sets.
TELLING = re.compile(r"[A-Z0-9_]*_(BYTES|CHARS|ITEMS|COUNT|MS|S|ID)_MAX\b|QOS_MAX\b")
LIMIT = re.compile(r"[A-Z][A-Z0-9_]*_MAX\b.*=")


def test_every_limit_says_what_it_limits():
    """A named limit is a constant in capitals that ends in _MAX; a comment on it or above it says of what."""
    bare = []
    for path in MODULES:
        lines = ["", *path.read_text("utf-8").splitlines()]
        for i, (before, line) in enumerate(itertools.pairwise(lines), 1):
            if LIMIT.match(line) and not (TELLING.match(line) or "#" in line + before or LIMIT.match(before)):
                bare.append(f"{name(path)}:{i}: {line}")
    assert bare == []


def test_the_example_configuration_loads_and_has_the_defaults():
    example = ROOT / "headgate.example.toml"
    assert config.load(example, {}) == config.load(None, {}, factories=config.adapter_factories())


def test_the_example_configuration_has_every_key():
    example = tomllib.loads(re.sub(r"^# (?=\[|\w+ = )", "", (ROOT / "headgate.example.toml").read_text(), flags=re.M))
    sections = {field.name: field for field in msgspec.structs.fields(config.Config)}
    missing = []
    for key, field in sections.items():
        if key not in example:
            missing.append(key)
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            keys = {one.name for one in msgspec.structs.fields(field.type)}
            missing += [f"{key}.{one}" for one in sorted(keys - example[key].keys())]
    assert sorted(missing) == ["adapters"]  # the adapters document their own options


def test_every_key_is_described():
    sections = [config.Config, config.StoreConfig, config.GatewayConfig, config.TlsConfig, config.AuthConfig]
    sections += [config.TopicsConfig, config.TopicRoute, config.AdminConfig, config.RpcConfig, config.LogConfig]
    sections += [LimitsConfig]
    bare = []
    for section in sections:
        for field in msgspec.structs.fields(section):
            of_tables = field.name in {"users", "listeners", "adapters", "routes", "bridges", "devices", "decode"}
            is_table = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
            if not (of_tables or is_table or describe(field)):
                bare.append(f"{section.__name__}.{field.name}")
    assert bare == []


def readme_shell() -> list[str]:
    """Returns every line in the README's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def test_the_readmes_commands_exist():
    listed = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    listed |= {group.name for group in cli.app.registered_groups}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = (ROOT / "README.md").read_text("utf-8") + (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    said = [line.removeprefix(".venv/bin/") for line in readme_shell()]
    assert {line.split()[1] for line in said if line.startswith("headgate ")} <= listed
    assert any(line.startswith("make run") for line in readme_shell())


def test_the_readmes_links_lead_somewhere():
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/operations.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text("utf-8")):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"
    for folder in re.findall(r'ARGS="(tests/\w+)"', (ROOT / "README.md").read_text("utf-8")):
        assert (ROOT / folder).is_dir()


def test_help_lists_the_commands():
    text = CliRunner().invoke(cli.app, ["--help"]).output
    for command in ("serve", "check-config", "pub", "sub", "topics", "spark", "version"):
        assert re.search(rf"\b{command}\b", text)


def test_the_documented_ports_are_the_adapters():
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+)[^|]*\|[^|]*\| `listeners\.([\w-]+)` \|", text, re.MULTILINE))
    declared = {str(one.port): one.name for one in config.load(None, {}).listeners.values()}
    assert rows == declared


def test_the_version_is_written_once():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert CliRunner().invoke(cli.app, ["version"]).output.strip() == version
