"""A server process over the fake engine: `python -m tests.server.serving '{"port": 0, ...}'`."""

import json
import sys
from pathlib import Path

import intarsia
from intarsia.engine.text.assets import TextAssets
from intarsia.models.glm5_next.explain import WeightRow
from intarsia.server.service import ServedModel, Service
from intarsia.server.settings import ServerSettings
from intarsia.server.web.process import Process
from tests.server.fake_engine import FakeEngine

DEMO = Path(intarsia.__file__).parent / "assets" / "demo"
VOCAB = 4096
WEIGHTS = (
    WeightRow("layers.0.mlp.down", "MXFP8", "MXFP8", "linear", "reference", "triton: the device is cpu"),
)


def service_of(**options):
    window, streams = options.pop("engine_window", 4096), options.pop("engine_streams", 4)
    options.setdefault("served_model_name", ("demo", "demo-alias"))
    options["served_model_name"] = tuple(options["served_model_name"])
    settings = ServerSettings(**options)
    config = json.loads((DEMO / "config.json").read_text())
    assets = TextAssets.open(DEMO, config, vocab_size=VOCAB)
    model = ServedModel(
        names=settings.served_model_name,
        text=assets,
        tokenizer_json=(DEMO / "tokenizer.json").read_text(),
        vocab_size=VOCAB,
        root="demo",
        weights=WEIGHTS,
    )
    engine = FakeEngine(assets, VOCAB, window=window, streams=streams, queue=settings.queue)
    return Service(settings, model, engine)


if __name__ == "__main__":
    Process(service_of(**json.loads(sys.argv[1]))).run()
