"""The compiled socket calls are built where that is possible, and missed nowhere."""

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


def load(path):
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


hatch_build = load(ROOT / "hatch_build.py")

WITH_COMPILER = pytest.mark.skipif(
    shutil.which(COMPILER) is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="needs a C compiler and Python's headers",
)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Makes a source tree with an older build of the calls."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CFLAGS", raising=False)
    monkeypatch.delenv("HEADGATE_COMPILE", raising=False)
    source = tmp_path / hatch_build.SOURCE
    source.parent.mkdir(parents=True)
    shutil.copy(ROOT / hatch_build.SOURCE, source)
    (tmp_path / hatch_build.BUILT).write_bytes(b"an older build")
    return tmp_path


def files(tree):
    return sorted(path.name for path in (tree / hatch_build.BUILT).parent.iterdir())


@WITH_COMPILER
def test_they_compile_without_a_warning_and_can_be_loaded(tree, monkeypatch):
    monkeypatch.setenv("CFLAGS", "-Werror")
    assert hatch_build.compile_calls(tree) == ""
    assert files(tree) == ["_batches.abi3.so", "_batches.c"]


@WITH_COMPILER
def test_what_cannot_be_compiled_leaves_no_build(tree):
    (tree / hatch_build.SOURCE).write_text("#error it cannot\n")
    assert "it cannot" in hatch_build.compile_calls(tree)
    assert files(tree) == ["_batches.c"]


@WITH_COMPILER
def test_what_cannot_be_loaded_leaves_no_build(tree):
    (tree / hatch_build.SOURCE).write_text("int nothing_of_python;\n")
    assert "PyInit__batches" in hatch_build.compile_calls(tree)
    assert files(tree) == ["_batches.c"]


@pytest.mark.parametrize("compiler", ["false", "a-compiler-that-nobody-has"])
def test_without_a_compiler_an_older_build_is_gone_and_the_reason_said(tree, monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    assert compiler in hatch_build.compile_calls(tree)
    assert files(tree) == ["_batches.c"]


def hook(tree):
    return hatch_build.CustomBuildHook(str(tree), {}, None, None, "", "wheel")


def test_an_editable_install_goes_on_without_a_compiler(tree, monkeypatch, capfd):
    monkeypatch.setenv("CC", "false")
    data = {"artifacts": [], "pure_python": True}
    hook(tree).initialize("editable", data)
    assert data == {"artifacts": [], "pure_python": True}
    assert "is not compiled" in "".join(capfd.readouterr())


def test_a_wheel_stays_free_of_compiled_code(tree):
    data = {"artifacts": [], "pure_python": True}
    hook(tree).initialize("standard", data)
    assert data == {"artifacts": [], "pure_python": True}


def test_a_wheel_that_must_have_them_is_not_built_without(tree, monkeypatch):
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("HEADGATE_COMPILE", "1")
    with pytest.raises(RuntimeError, match="HEADGATE_COMPILE=1"):
        hook(tree).initialize("standard", {"artifacts": [], "pure_python": True})


@WITH_COMPILER
def test_a_wheel_that_has_them_is_for_its_platform(tree, monkeypatch):
    monkeypatch.setenv("HEADGATE_COMPILE", "1")
    data = {"artifacts": [], "pure_python": True}
    hook(tree).initialize("standard", data)
    assert data["artifacts"] == [hatch_build.BUILT]
    assert data["pure_python"] is False
    assert data["tag"].startswith("cp311-abi3-linux_")


def test_no_build_is_in_the_repository():
    listed = subprocess.run(["git", "ls-files", "*.so"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout == ""
