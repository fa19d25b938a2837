"""The text format of /metrics, checked by a reader of its own; the numbers are checked through a real service."""

import re

import pytest

from ductile.core.metrics import BOUNDS, Histogram, Meters
from ductile.web.metrics import family, gauge, histograms, labelled

SAMPLE = re.compile(r'^[a-z_]+(?:\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? [-+.0-9e]+$')


def test_every_line_is_a_comment_or_a_sample() -> None:
    """Whatever names plugins have."""
    meters = Meters()
    meters.jobs['odd"name\\', "new\nline", "dead"] += 3
    text = "".join(family("x_total", "counter", "X.", labelled(meters.jobs, "plugin", "command", "status")))
    help_, type_, sample = text.splitlines()
    assert (help_, type_) == ("# HELP x_total X.", "# TYPE x_total counter")
    assert SAMPLE.match(sample)
    assert sample == 'x_total{plugin="odd\\"name\\\\",command="new\\nline",status="dead"} 3'


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (2.0, "2"), (0.25, "0.25"), (1e-05, "1e-05")])
def test_numbers_are_written_shortly(value: float, shown: str) -> None:
    assert "".join(gauge("x", "X.", value)).splitlines()[-1] == f"x {shown}"


def test_buckets_count_everything_up_to_their_end() -> None:
    """An end belongs to its bucket, the last bucket has everything."""
    histogram = Histogram()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] + 1e-9, 99999.0):
        histogram.observe(seconds)
    lines = "".join(histograms("x", "X.", [({"plugin": "a"}, histogram)])).splitlines()[2:]
    counts = [int(line.split()[-1]) for line in lines if line.startswith("x_bucket")]
    assert counts[:2] == [2, 3]
    assert counts == sorted(counts)
    assert lines[len(BOUNDS)] == 'x_bucket{plugin="a",le="+Inf"} 4'
    assert lines[-1] == 'x_count{plugin="a"} 4'
