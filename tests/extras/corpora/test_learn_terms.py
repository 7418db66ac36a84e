"""Terms that are learned from pairs of texts."""

import random
import time
import tracemalloc

import pytest
from reference import model_1

from keras_transformer.base.errors import InputError
from keras_transformer.cli import main as cli
from keras_transformer.extras.corpora import learn_terms as module


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


def words_of(count, letter):
    return " ".join(f"{letter}{number:b}".translate({48: "p", 49: "q"}) for number in range(count))


def test_a_pair_of_very_many_words_takes_neither_time_nor_memory(monkeypatch):
    short = [("one house", "ein haus"), ("one book", "ein buch")] * 3
    start = time.process_time()
    tracemalloc.start()
    try:
        long = words_of(20_000, "a"), words_of(20_000, "b")
        assert set(module.learn_terms([long, *short])) == set(module.learn_terms(short)) != set()
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 5
    # Six pairs of nine links: the pair that would exceed the limit does not count, nor later ones.
    for limit, count in ((54, 6), (53, 5), (45, 5), (26, 2)):
        monkeypatch.setattr(module, "_MAX_LINKS", limit)
        assert list(module.learn_terms(short)) == list(module.learn_terms(short[:count]))


WRONG = [("min_pairs", 0), ("min_pairs", -4), ("min_pairs", 1.5), ("min_probability", 5)]
WRONG += [("min_probability", float("nan")), ("min_probability", -0.1), ("min_probability", "1")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_options_out_of_range_are_refused_before_a_pair_is_read(name, value, capsys):
    def pairs():
        raise AssertionError
        yield

    with pytest.raises(InputError, match=f"`{name}` must be .* Received: {name}="):
        module.learn_terms(pairs(), **{name: value})


def test_the_command_glossary_writes_words_with_their_translations(tmp_path, capsys):
    (tmp_path / "en").write_text("one two\ntwo three\none three\n" * 3, encoding="utf-8")
    (tmp_path / "de").write_text("eins zwei\nzwei drei\neins drei\n" * 3, encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("en", "de")]
    assert cli.run(["glossary", *paths]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["one\teins", "three\tdrei", "two\tzwei"]
    assert cli.run(["glossary", *paths, "--min-pairs", "7"]) == 0 and not capsys.readouterr().out
