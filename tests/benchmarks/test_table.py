from benchmarks.decode import table

COMMON = {
    "rounds": 5,
    "threads": 2,
    "machine": {"processor": "a machine", "cores": 2},
    "versions": {"keras": "3.15.1"},
    "reference": "ours",
    "notes": {"ours": "our note", "ctranslate2": "their note"},
    "not_installed": {"keras_hub": "peers"},
}


def engine(setting, rate, ratio=1.0, same=1.0):
    return {"setting": setting, "rate": rate, "ratio": ratio, "same": same}


def test_random_sentences_have_a_row_for_each_engine_with_its_setting():
    two = {"ours": engine("workers=1", 215.0), "ctranslate2": engine("a=1, b=2", 387.2, 0.555, 0.5)}
    row = {"sentences": 32, "beam_size": 4, "engines": two}
    report = {"unit": "tokens", "preset": "p", "length": 3, "steps": 5, "rows": [row]}
    lines = table({**report, **COMMON}).splitlines()
    assert lines[:4] == [
        "| sentences | search | engine | tokens/s | ratio | same as ours | setting |",
        "|---|---|---|---|---|---|---|",
        "| 32 | beam 4 | ours | 215 | 1.00 | 100.0% | workers=1 |",
        "| 32 | beam 4 | ctranslate2 | 387 | 0.56 | 50.0% | a=1, b=2 |",
    ]
    below = "\n".join(lines[4:])
    assert "p, sources of 3 tokens, 5 forced steps. Medians of 5 rounds in turns" in below
    assert "the fastest setting of at most 2 threads" in below
    assert "a machine, 2 cores; keras 3.15.1." in below
    assert "- ours: our note." in below
    assert '- not installed: keras_hub (pip install "keras-transformer-nmt[peers]").' in below
