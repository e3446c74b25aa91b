"""The demonstration says in one line how long it took to what a visitor waits for."""

import asyncio

from deploy.demo.milestones import Milestones
from deploy.demo.plan import Target
from deploy.demo.show import Options, Show
from deploy.demo.spark_job import SparkJob


def test_each_is_told_with_the_seconds_from_the_start_to_the_look_that_found_it():
    now, there = [10.0], set()
    found = Milestones(lambda: now[0])
    assert (found.line(), found.all_reached) == ("", True)
    names = ("dashboard up", "first table version committed", "first finding heard over MQTT")
    for name in names:
        found.expect(name, lambda name=name: name in there)
    found.look()
    assert found.line() == f"from the start: {', '.join(f'not {name}' for name in names)}"
    for after_s, name in ((4.06, names[0]), (21.0, names[1])):
        there.add(name)
        now[0] = 10.0 + after_s
        found.look()
    assert not found.all_reached
    now[0] = 99.0
    found.look()
    assert found.line() == (
        "from the start: dashboard up after 4.1 s, first table version committed after 21.0 s, "
        "not first finding heard over MQTT"
    )
    there.clear()  # a time that was noted stays
    there.add(names[2])
    found.look()
    assert found.line().endswith(
        "first table version committed after 21.0 s, first finding heard over MQTT after 89.0 s"
    )
    assert found.all_reached


class Batches:
    def __init__(self, *batches):
        self._batches = iter(batches)

    def progress(self):
        return type("Progress", (), {"batch": next(self._batches)})


def test_a_table_version_of_an_earlier_run_does_not_count():
    job = SparkJob(None, Batches(7, 7, 8))
    assert (job.has_committed(), job.has_committed()) == (False, True)


def test_the_show_looks_until_all_is_reached(tmp_path):
    show, looks = Show(Options(tmp_path, Target(), ()), None, asyncio.Event()), []
    show._milestones.expect("here", lambda: looks.append(1) or len(looks) == 3)
    asyncio.run(show._note_milestones())
    assert len(looks) == 3
