"""An engine whose translations are known, and the application of such an engine."""

import asyncio
import json
import math

import numpy as np
import pytest
from fakes import FakeEngine

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import MANIFEST
from keras_transformer.extras.serving import ServerOptions
from keras_transformer.extras.serving.endpoints import Rejection
from keras_transformer.extras.serving.server_options import served_export


class GraphError(Exception):
    """An error of TensorFlow's about the inputs of a graph."""

    error_code = 3


class Engine(FakeEngine):
    """An engine that notes its calls: upper case; the texts "bad", "graph" and "bug" fail."""

    capabilities = frozenset({"translate", "score", "sample", "align"})

    def __init__(self, format="ctranslate2", **manifest):
        self.manifest = {"format": f"keras_transformer.{format}", "beam_size": 2, **manifest}
        self.calls = []

    def request(self, **options):
        if options.get("alignment") and "align" not in self.capabilities:
            raise InputError("no alignments")

    max_source_length = 10**9
    hypotheses = ()  # after the best

    def translate(self, texts, **options):
        self.calls.append((list(texts), options))
        if "bad" in texts:
            raise InputError("text 1 is bad.\nMore.")
        if "graph" in texts:
            raise GraphError("[[node]]\nthe graph has no such text\n\t [[{{node}}]]")
        if "bug" in texts:
            raise RuntimeError("a bug")
        others = [
            Translation(text, -rank if text else -math.inf)
            for rank, text in enumerate(self.hypotheses, start=1)
        ]
        if others:  # No beam is narrower than what is asked for.
            others += [Translation("", -math.inf)] * options.get("n_best", 1)
        fields = {"alternatives": tuple(others[: options.get("n_best", 1) - 1])}
        translations = []
        for text in texts:
            if options.get("alignment"):
                fields["alignment"] = np.float32([[0.1], [0.9]] * len(text))
            fields |= {"tokens": (text, "</s>"), "source_tokens": (text,)}
            upper = text.upper().replace("<PH_", "<ph_")
            translations.append(Translation(upper, 0.1, **fields))
        return translations

    def score(self, sources, targets):
        return [Translation(target, -0.5, -1.5) for target in targets]


def translations_of(model, name, rows, options=(), is_wanted=lambda: True):
    """The translation of each text of a request, in one batch per key."""

    def check_cancelled():
        if not is_wanted():
            raise Rejection(504, "gone")

    work = model.prepare(name, rows, dict(options), check_cancelled)
    translations = {}
    for key in dict.fromkeys(key for key, _ in work.rows):
        indices = [index for index, (other, _) in enumerate(work.rows) if other == key]
        batch = model.run(key, [work.rows[index][1] for index in indices], is_wanted)
        translations |= dict(zip(indices, batch, strict=True))
    return work.to_translations([translations[index] for index in range(len(work.rows))])


def outputs_of(model, name, *arguments):
    """The outputs of a signature of each text of a request."""
    return model.outputs(name, translations_of(model, name, *arguments))


def application_of(folder, engine=None, **options):
    """The application of an engine, whose export is `folder`.

    Its `state.engine` is the engine, and `state.warm_up` are calls before the first request.
    """
    app = pytest.importorskip(
        "keras_transformer.extras.serving.app", reason="comes with the extra [serve]"
    )
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text("{}")
    options = ServerOptions(model=str(folder), **{"batch_wait_ms": 0, **options})
    engine = engine or Engine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "load", lambda folder, threads: Translator(engine))
        application = app.application(app.Api(served_export(options), options))
    application.state.warm_up, engine.calls = engine.calls, []
    application.state.engine = engine
    application.state.runner = asyncio.Runner()  # The batches of all requests have one loop.
    return application


def with_client(app, talk):
    """What `talk(client)` returns, which awaits the answers of a client."""
    httpx = pytest.importorskip("httpx2", reason="comes with the extra [serve]")

    async def run():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await talk(client)

    return app.state.runner.run(run())


def ask(app, method, path, **more):
    """The answer to one request."""
    return with_client(app, lambda client: client.request(method, path, **more))


def predict(app, name, rows, **fields):
    """The answer to a request of TensorFlow Serving's form: a list of rows, or an error."""
    body = json.dumps({"signature_name": name, "instances": rows, **fields})
    answer = ask(app, "POST", "/v1/models/toy:predict", content=body).json()
    return answer["predictions"] if "predictions" in answer else answer["error"]
