"""`Distribution` exposes what a histogram of prometheus-client does."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.ops.histogram import Distribution

BUCKETS = (0.5, 1, 3.0, 1_000)


@given(st.lists(st.one_of(st.sampled_from([0, 0.5, 1, 3, 1_000, 1_001]), st.integers(0, 5_000))))
def test_it_exposes_what_a_histogram_of_the_library_does(values):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    distribution = Distribution("size", "Sizes", BUCKETS)
    ours.register(distribution)
    histogram = Histogram("size", "Sizes", buckets=BUCKETS, registry=theirs)
    for value in values:
        distribution.observe(value)
        histogram.observe(value)
    said = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == said
