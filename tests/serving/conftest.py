"""A server that the tests of a process share."""

import pytest
from live_server import Server, save_model


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with version 1 of the small model."""
    folder = tmp_path_factory.mktemp("models") / "toy"
    save_model(folder / "1")
    return folder


@pytest.fixture(scope="module")
def server(toy, tmp_path_factory):
    """A server that the tests of a file share."""
    pytest.importorskip("ray")
    running = Server(toy, tmp_path_factory.mktemp("server") / "log")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def light(tmp_path_factory):
    """An export that is loaded in a second: CTranslate2, random weights."""
    pytest.importorskip("ctranslate2")
    import numpy as np
    from decoding_oracles import ban_padding_and_bos

    from keras_transformer import Tokenizer, Transformer, TransformerConfig
    from keras_transformer.engine import ModelEngine
    from keras_transformer.export import export_ctranslate2

    words = "a man two dogs runs sleeps in the park on bench".split()
    texts = [f"{one} {two} {three}." for one in words for two in words for three in words]
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=29)
    sizes = dict(model_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(29, intermediate_dim=32, **sizes))
    chance = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(0.7 * chance.normal(size=weight.shape))
    ban_padding_and_bos(model)
    engine = ModelEngine(model, tokenizer, max_source_length=31, max_target_length=17)
    folder = tmp_path_factory.mktemp("models") / "light"
    export_ctranslate2(engine, folder, beam_size=2, verification_texts=texts[:20])
    return folder
