"""The filters of subscriptions, by the words of the CloudEvents Subscriptions API (3.2.4)."""

from typing import Any

import pytest

from gateway.domain.cesql import FILTERS_MAX, FilterError, compile_filters

EVENT = {"specversion": "1.0", "id": "1", "source": "/a/b", "type": "com.x.made", "sequence": 7, "hot": True}


@pytest.mark.parametrize(
    ("one", "passes"),
    [
        ({"exact": {"type": "com.x.made"}}, True),
        ({"exact": {"type": "com.x.made", "id": "2"}}, False),
        ({"exact": {"type": "COM.X.MADE"}}, False),
        ({"exact": {"subject": "s"}}, False),
        ({"exact": {"sequence": "7", "hot": "true"}}, True),
        ({"prefix": {"type": "com.x.", "source": "/a"}}, True),
        ({"prefix": {"type": "x"}}, False),
        ({"suffix": {"type": ".made"}}, True),
        ({"suffix": {"source": "a"}}, False),
        ({"all": [{"exact": {"id": "1"}}, {"sql": "sequence > 6"}]}, True),
        ({"all": [{"exact": {"id": "1"}}, {"sql": "sequence > 7"}]}, False),
        ({"any": [{"exact": {"id": "2"}}, {"not": {"exact": {"id": "2"}}}]}, True),
        ({"any": [{"exact": {"id": "2"}}]}, False),
        ({"not": {"exact": {"subject": "s"}}}, True),
        ({"sql": "missing = 1"}, False),
        ({"sql": "id"}, False),
    ],
)
def test_each_dialect(one: dict[str, Any], passes: bool) -> None:
    assert compile_filters([one])(EVENT) is passes
    assert compile_filters([{"not": one}])(EVENT) is not passes


def test_no_filter_passes_everything_and_several_are_all_needed() -> None:
    assert compile_filters([])(EVENT)
    assert not compile_filters([{"exact": {"id": "1"}}, {"exact": {"id": "2"}}])(EVENT)


@pytest.mark.parametrize(
    ("filters", "path"),
    [
        ("x", "filters"),
        (["x"], "filters[0]"),
        ([{}], "filters[0]"),
        ([{"exact": {"id": "1"}, "prefix": {"id": "1"}}], "filters[0]"),
        ([{"regex": {"id": "1"}}], "filters[0]"),
        ([{"exact": {}}], "filters[0].exact"),
        ([{"exact": {"id": ""}}], "filters[0].exact"),
        ([{"exact": {"id": 1}}], "filters[0].exact"),
        ([{"all": []}], "filters[0].all"),
        ([{"any": {}}], "filters[0].any"),
        ([{"any": [{"not": {"sql": "id ="}}]}], "filters[0].any[0].not.sql"),
        ([{"sql": "NOSUCH(1)"}], "filters[0].sql"),
        ([{"sql": 1}], "filters[0].sql"),
        ([{"exact": {"id": "1"}}] * (FILTERS_MAX + 1), f"filters[{FILTERS_MAX // 2}]"),
    ],
)
def test_a_filter_that_is_none_is_refused_by_its_place(filters: Any, path: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_filters(filters)
    assert caught.value.attribute == path


@pytest.mark.parametrize("dialect", ["exact", "prefix", "suffix"])
@pytest.mark.parametrize("name", ["Type", "x-zone", "my_ext", "größe", "type ", "type\n"])
def test_a_name_that_no_attribute_can_have_is_refused(dialect: str, name: str) -> None:
    for filters in ([{dialect: {"id": "1", name: "x"}}], [{"any": [{"not": {dialect: {name: "x"}}}]}]):
        with pytest.raises(FilterError, match="lower-case letters"):
            compile_filters(filters)


def test_a_stored_filter_may_have_such_a_name_and_goes_on() -> None:
    assert not compile_filters([{"exact": {"Type": "com.x.made"}}], stored=True)(EVENT)


def test_filters_stand_only_so_deep() -> None:
    one: dict[str, Any] = {"exact": {"id": "1"}}
    for _ in range(8):
        one = {"not": one}
    with pytest.raises(FilterError, match="deep"):
        compile_filters([one])
