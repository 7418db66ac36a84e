import io

import pytest

from keras_transformer.errors import InputError
from keras_transformer.streaming import Progress, stream_translations


class Recorder(io.StringIO):
    """Remembers what was there at each flush."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def flush(self):
        self.seen.append(self.getvalue())


def test_a_line_is_written_while_it_grows(translator, lines):
    output = Recorder()
    stream_translations(translator, lines("a b", "", "c"), output, sampling=True)
    assert output.seen == ["A", "A B", "A B\n", "A B\n\n", "A B\n\nC", "A B\n\nC\n"]
    assert translator.options[-1] == {"sampling": True}


def test_text_that_changes_is_written_anew_on_a_terminal(lines):
    class Changing:
        def stream(self, text):
            return iter(["Ab", "Abx", "Ab cd", "Ab cde"])

    output = io.StringIO()
    stream_translations(Changing(), lines("a"), output, rewrite=True)
    assert output.getvalue() == "Abx\r\x1b[KAb cde\n"


def test_each_line_has_its_prefix_and_its_number(translator, lines, tmp_path):
    path = tmp_path / "prefixes"
    path.write_text("x\n\nz\n")
    output = io.StringIO()
    with pytest.raises(InputError, match="^stdin, line 3: Too long. Received: 99 tokens: 'LONG'$"):
        stream_translations(translator, lines("a", "b", "LONG"), output, target_prefixes=path)
    assert output.getvalue() == "xA\nB\n"


def test_wrong_options_are_told_before_anything_is_read(translator, monkeypatch):
    def refuse(text, **options):
        raise InputError("Only one hypothesis can be streamed.")

    monkeypatch.setattr(translator, "stream", refuse)
    source = io.BytesIO(b"a\n")
    with pytest.raises(InputError, match="^Only one"), Progress(shown=False) as progress:
        stream_translations(translator, source, io.StringIO(), progress=progress, beam_size=3)
    assert source.tell() == 0
