"""``docs/design/README.md`` lists every decision once, by number and title."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[3] / "docs" / "design"


def test_the_index_is_what_the_folder_holds() -> None:
    entries = []
    for number, path in enumerate(sorted(FOLDER.glob("[0-9]*.md")), 1):
        heading = path.read_text().split("\n", 1)[0]
        assert path.name.startswith(f"{number:03}-"), "numbers are given out once, without gaps"
        assert heading.startswith(f"# {number:03} ")
        entries.append(f"- [{number:03}]({path.name}) {heading.split(maxsplit=2)[2]}")
    index = (FOLDER / "README.md").read_text()
    assert [line for line in index.splitlines() if line.startswith("- ")] == entries
