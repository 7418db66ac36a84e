from benchmarks import noise
from keras_transformer import Translation


class Copies:
    """Gives each text back, and remembers it and the limit."""

    max_target_length = 99

    def __init__(self):
        self.read, self.limits, self.engine = [], [], self

    def translate(self, texts, max_length):
        self.read.append(texts)
        self.limits.append(max_length)
        return [Translation(text, 0.0, ids=tuple(range(7))) for text in texts]


def test_each_kind_of_noise_is_scored_against_what_it_makes_of_the_reference(
    tmp_path, monkeypatch, capsys
):
    lines = ["Two dogs, both of them small, play there.", "A man sleeps behind the green house."]
    text = tmp_path / "text"
    text.write_text("".join(line + "\n" for line in lines))
    translators = {"one": Copies(), "other": Copies()}
    monkeypatch.setattr(noise, "enable_compilation_cache", lambda: None)
    monkeypatch.setattr(noise.Translator, "load", translators.get)
    noise.main(["one", "other", "--source", str(text), "--reference", str(text)])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["text", "one", "other"]
    scores = {name: float(score) for name, score, other in rows[2:] if score == other}
    # A copy is right, but for typing errors, which the reference is without.
    assert scores.pop("typos") < 80
    assert scores == dict.fromkeys(["as it is", "in capitals", "Title Case", "no punctuation"], 100)
    clean, capitals, titles, typos, bare = translators["one"].read
    assert translators["other"].read == [clean, capitals, titles, typos, bare]
    # Twice the longest translation of the text as it is, and ten more.
    assert translators["one"].limits == [None, 24, 24, 24, 24]
    assert clean == lines and capitals == [line.upper() for line in lines]
    assert titles == [line.title() for line in lines] and typos != lines
    assert bare == [lines[0].replace(",", "")[:-1], lines[1][:-1]]
