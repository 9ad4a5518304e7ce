"""One random life of a whole engine; ``tests/soak/engine.py`` lives as many as one likes."""

from pathlib import Path

from tests.soak.engine import Model, RandomLife


def test_every_answer_under_stress_is_that_of_the_request_alone(tmp_path: Path):
    """Arrivals, aborts, preemptions, adapters that come and go; ``check`` after every step."""
    models: dict[str, Model] = {}
    RandomLife(0, models, tmp_path).run(num_events=60)
