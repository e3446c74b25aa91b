"""Children are started so that they end with their parent, waited for, and ended in time."""

import signal
import subprocess
import sys
import time

import pytest

from gateway.process import child as child_file
from gateway.process.child import Child, ChildFailed, end, module_command
from gateway.process.supervisor import Supervisor

PATIENCE_S = 60
WAITS = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


def launch(program, tmp_path, name="one"):
    return Child.start(name, [sys.executable, "-c", program], log=tmp_path / f"{name}.log")


def until_up(child):
    while not child.log.read_text():
        assert child.running
        time.sleep(0.01)


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    file = tmp_path / "waits.py"
    file.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    program = (
        "import sys, time; from gateway.process.child import Child, module_command\n"
        "Child.start('one', module_command('waits'), pipes=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == b"", "the pipe ends when the last process that can write to it has ended"
    assert pid > 0


def test_a_child_whose_parent_has_ended_before_it_begins_does_not_begin(tmp_path):
    command = module_command("json.tool")
    command[4] = "1"  # not its parent
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=PATIENCE_S).returncode == 1


def test_a_child_becomes_the_module_with_its_arguments(tmp_path):
    (tmp_path / "a.json").write_text('{"b":1}')
    command = module_command("json.tool", "--compact", str(tmp_path / "a.json"))
    found = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    assert found.stdout == b'{"b":1}\n'


def test_a_child_that_cannot_be_started_is_said_with_its_name(tmp_path):
    with pytest.raises(ChildFailed, match="one cannot be started: No such file or directory"):
        Child.start("one", [str(tmp_path / "no such program")])


def test_children_are_ended_together_and_those_that_do_not_end_in_time_are_killed(tmp_path):
    polite, deaf = launch(WAITS, tmp_path, "polite"), launch(DEAF, tmp_path, "deaf")
    for one in (polite, deaf):
        until_up(one)
    assert [one.name for one in end([polite, deaf], 0.5)] == ["deaf"]
    assert [one.process.poll() for one in (polite, deaf)] == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_child_that_is_paused_can_end_politely(tmp_path):
    paused = launch(WAITS, tmp_path)
    until_up(paused)
    paused.process.send_signal(signal.SIGSTOP)
    assert end([paused], PATIENCE_S) == []
    assert paused.process.poll() == -signal.SIGTERM


def test_the_end_of_a_child_is_said_by_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(child_file, "LAST_WORDS_BYTES", 20)
    one = launch("print('x' * 100); raise SystemExit('no room on the disk')", tmp_path)
    one.process.wait()
    assert one.describe_end() == "one has ended: no room on the disk"
    program = 'print(\'{"level":"info","event":"gone"}\')'
    logged = launch(program, tmp_path, "three")
    logged.process.wait()
    monkeypatch.setattr(child_file, "LAST_WORDS_BYTES", 200)
    assert logged.describe_end() == "three has ended: gone"
    silent = launch("pass", tmp_path, "two")
    silent.process.wait()
    assert silent.describe_end() == "two has ended: it said nothing"


def test_children_are_waited_for_until_each_is_ready_or_one_has_ended(tmp_path):
    supervisor = Supervisor(lambda name: launch(WAITS, tmp_path, name), stop_s=PATIENCE_S)
    troubles = {"one": "starting", "two": None}
    for name in troubles:
        supervisor.start(name)
    looks = supervisor.becoming_ready(list(troubles), troubles.get, timeout_s=None)
    assert next(looks) == ["two"]
    assert next(looks) == []
    until_up(supervisor.children["one"])
    supervisor.children["one"].process.kill()
    supervisor.children["one"].process.wait()
    with pytest.raises(ChildFailed, match=r"^one has ended: up$"):
        next(looks)
    assert [supervisor.running(name) for name in troubles] == [False, True]
    supervisor.stop("one", "two")
    assert not supervisor.children
