"""Terms that are learned from pairs of texts."""

import random

from reference import model_1

from keras_transformer.cli import main as cli
from keras_transformer.corpora import learn_terms as module


def test_words_are_learned_with_their_marks():
    pairs = [("one house", "एक घर"), ("one book", "एक किताब"), ("book", "किताब")] * 3
    assert ("book", "किताब") in set(module.learn_terms(pairs))
    # The second pair spells both words in another way.
    pairs = [("café", "caffè"), ("cafe\u0301", "caf\u00adfe\u0300")]
    assert ("café", "caffè") in set(module.learn_terms(pairs))


def test_terms_are_probable_in_both_directions():
    rng = random.Random(3)
    pairs = [
        (" ".join(rng.sample("abcde", 3)), " ".join(rng.sample("vwxyz", 2))) for _ in range(12)
    ]
    ahead, back = model_1(pairs), model_1([pair[::-1] for pair in pairs])
    for limit in (0.1, 0.25, 0.4):
        likely = {pair for pair, share in ahead.items() if all(pair) and share >= 0.1}
        both = lambda s, t: sum(s in a.split() and t in b.split() for a, b in pairs)  # noqa: E731
        expected = {(s, t) for s, t in likely if back[t, s] >= limit and both(s, t) >= 2}
        assert set(module.learn_terms(pairs, min_probability=limit)) == expected != set()
    assert list(module.learn_terms([("", "a"), ("b", "")])) == []


def test_the_command_glossary_writes_words_with_their_translations(tmp_path, capsys):
    (tmp_path / "en").write_text("one two\ntwo three\none three\n" * 3, encoding="utf-8")
    (tmp_path / "de").write_text("eins zwei\nzwei drei\neins drei\n" * 3, encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("en", "de")]
    assert cli.run(["glossary", *paths]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["one\teins", "three\tdrei", "two\tzwei"]
    assert cli.run(["glossary", *paths, "--min-pairs", "7"]) == 0 and not capsys.readouterr().out
