from benchmarks import artifact_table


def test_the_table_is_markdown():
    row = {
        "artifact": "LiteRT int8",
        "megabytes": 3.14,
        "bleu": 35.678,
        "tokens_per_second_1": 1234,
        "setting_1": "1x2",
        "tokens_per_second_32": 5678,
        "setting_32": "2x1",
        "peak_megabytes": 99,
        "load_seconds": 0.05,
        "first_sentence_seconds": 0.012,
    }
    *_, last = artifact_table.table([row])
    assert last == "| LiteRT int8 | 3.1 | 35.68 | 1,234 (1x2) | 5,678 (2x1) | 99 | 0.05 | 0.01 |"
