"""A short attack in every run of the tests; ``scripts/fuzz`` makes the long ones."""

from tests.fuzz.run import fuzz


def test_mutated_requests_break_nothing() -> None:
    findings = fuzz(requests=1500, seed=20, connections=8)
    assert not findings.found, "\n".join(findings.found)
    assert findings.statuses[200] > 300 and findings.statuses[400] > 300  # it reached both sides
