"""Forms of the demo and its converted checkpoints, made once."""

from pathlib import Path

import pytest

from intarsia.evidence.forms import Form, open_form
from intarsia.loading.export import convert


@pytest.fixture(scope="session")
def demo() -> Form:
    return open_form("demo")


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    """Folders of converted demos, by recipe and scale compression."""
    made: dict[tuple[str, str | None], Path] = {}

    def folder(recipe: str, csf: str | None = None) -> Path:
        if (recipe, csf) not in made:
            out = tmp_path_factory.mktemp("converted") / f"{recipe}-{csf}"
            made[recipe, csf] = convert("demo", out, recipe=recipe, csf=csf).path
        return made[recipe, csf]

    return folder
