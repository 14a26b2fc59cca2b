"""The demo as stored and in the forms it is converted to, made once."""

import pytest

from intarsia.checkpoint import open_checkpoint
from intarsia.checkpoint.paths import locate
from intarsia.loading.export import convert

FORMS = {"block": ("fp4-local", "block"), "slab": ("fp4-local", "slab"), "spark": ("spark", "none")}


@pytest.fixture(scope="session", params=["bf16", *FORMS])
def demo(request, tmp_path_factory):
    if request.param == "bf16":
        return open_checkpoint("demo")
    recipe, csf = FORMS[request.param]
    out = tmp_path_factory.mktemp("demo") / request.param
    convert(locate("demo"), out, recipe=recipe, csf=csf)
    return open_checkpoint(out)
