from keras_transformer.benchmark.decode import table

COMMON = {
    "rounds": 5,
    "threads": 2,
    "machine": {"processor": "a machine", "cores": 2},
    "versions": {"keras": "3.15.1"},
    "notes": {"ours": "our note", "ctranslate2": "their note"},
    "not_installed": {"keras_hub": "peers", "litert": "litert"},
}


def engine(tokens_per_second, ratio=None):
    return {"tokens_per_second": tokens_per_second, "ratio": ratio, "seconds": [1.0]}


def test_a_decode_report_is_an_aligned_markdown_table():
    rows = [
        {
            "batch": batch,
            "beam_size": beam_size,
            "engines": {"ours": engine(ours), "ctranslate2": engine(peer, ratio)},
            "gigaflops": 1.0,
            "matrix_product_gflops_per_second": 245.4,
            "ours_share_of_matrix_product": share,
        }
        for batch, beam_size, ours, peer, ratio, share in [
            (1, 1, 215.0, 387.2, 0.555, 0.0625),
            (32, 4, 2368.4, 1490.0, 1.584, 0.8),
        ]
    ]
    report = {"benchmark": "decode", "preset": "p", "length": 3, "steps": 5, "rows": rows}
    lines = table({**report, **COMMON}).splitlines()
    assert lines[:4] == [
        "| sentences | search |  ours | ctranslate2 | ratio | matrix product | our share |",
        "| --------: | -----: | ----: | ----------: | ----: | -------------: | --------: |",
        "|         1 | greedy |   215 |         387 |  0.56 |            245 |        6% |",
        "|        32 | beam 4 | 2,368 |       1,490 |  1.58 |            245 |       80% |",
    ]
    below = "\n".join(lines[4:])
    assert "5 forced steps; medians of 5 rounds in turns, 2 threads" in below
    assert "a machine, 2 cores; keras 3.15.1." in below
    assert "- ours: our note." in below
    assert '- not installed: keras_hub (pip install "keras_transformer[peers]").' in below
    assert '- not installed: litert (pip install "keras_transformer[litert]").' in below


def test_without_ours_there_is_no_ratio_and_no_share():
    row = {
        "batch": 1,
        "beam_size": 1,
        "engines": {"ctranslate2": engine(387.0)},
        "gigaflops": 1.0,
        "matrix_product_gflops_per_second": 245.0,
        "ours_share_of_matrix_product": None,
    }
    report = {"benchmark": "decode", "preset": None, "length": 3, "steps": 5, "rows": [row]}
    alone = {"notes": {"ctranslate2": "their note"}, "not_installed": {}}
    rendered = table({**report, **COMMON, **alone})
    cells = [cell.strip() for cell in rendered.splitlines()[2].strip("|").split("|")]
    assert cells == ["1", "greedy", "387", "", "245", ""]
    assert "not installed" not in rendered


def test_a_corpus_report_is_an_aligned_markdown_table():
    ours = {"batch_size": 64, "sentences_per_second": 500.0, "ratio": None, "same_as_ours": None}
    peer = {"batch_size": 128, "sentences_per_second": 400.0, "ratio": 1.25, "same_as_ours": 0.991}
    report = {
        "benchmark": "corpus",
        "source": "test.en",
        "sentences": 1000,
        "beam_size": 4,
        "length_penalty": 0.6,
        "engines": {"ours": ours, "ctranslate2": peer},
    }
    lines = table({**report, **COMMON}).splitlines()
    assert lines[:4] == [
        "|      engine | batch | seconds | sentences/s | ratio | same as ours |",
        "| ----------: | ----: | ------: | ----------: | ----: | -----------: |",
        "|        ours |    64 |    2.00 |       500.0 |       |              |",
        "| ctranslate2 |   128 |    2.50 |       400.0 |  1.25 |        99.1% |",
    ]
    assert "1,000 sentences of test.en, beam 4, length penalty 0.6;" in "\n".join(lines)
