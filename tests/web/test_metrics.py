"""The text format of /metrics. End-to-end tests check the values."""

import re

import pytest

from ductile.core.metrics import BUCKET_BOUNDS, Histogram, Metrics
from ductile.web.metrics import format_family, format_gauge, format_histograms, label_samples

SAMPLE = re.compile(r'^[a-z_]+(?:\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? [-+.0-9e]+$')


def test_every_line_is_a_comment_or_a_sample() -> None:
    """Label values are escaped."""
    meters = Metrics()
    meters.jobs['odd"name\\', "new\nline", "dead", "cancelled"] += 3
    samples = label_samples(meters.jobs, "plugin", "command", "status", "code")
    text = "".join(format_family("x_total", "counter", "X.", samples))
    help_, type_, sample = text.splitlines()
    assert (help_, type_) == ("# HELP x_total X.", "# TYPE x_total counter")
    assert SAMPLE.match(sample)
    assert sample == 'x_total{plugin="odd\\"name\\\\",command="new\\nline",status="dead",code="cancelled"} 3'


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (2.0, "2"), (0.25, "0.25"), (1e-05, "1e-05")])
def test_integers_have_no_decimal_point(value: float, shown: str) -> None:
    assert "".join(format_gauge("x", "X.", value)).splitlines()[-1] == f"x {shown}"


def test_buckets_are_cumulative() -> None:
    """The upper bound belongs to its bucket; the last bucket counts everything."""
    histogram = Histogram()
    for seconds in (0.0, BUCKET_BOUNDS[0], BUCKET_BOUNDS[0] + 1e-9, 99999.0):
        histogram.observe(seconds)
    lines = "".join(format_histograms("x", "X.", [({"plugin": "a"}, histogram)])).splitlines()[2:]
    counts = [int(line.split()[-1]) for line in lines if line.startswith("x_bucket")]
    assert counts[:2] == [2, 3]
    assert counts == sorted(counts)
    assert lines[len(BUCKET_BOUNDS)] == 'x_bucket{plugin="a",le="+Inf"} 4'
    assert lines[-1] == 'x_count{plugin="a"} 4'
