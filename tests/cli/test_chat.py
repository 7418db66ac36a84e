"""`keras-transformer chat`: lines in, replies out, with what was said before in mind."""

import pytest

from keras_transformer import Translation
from keras_transformer.text.dialog import Turns


@pytest.fixture
def talk(recorder, call, monkeypatch):
    """`talk(text, …)`: exit code, replies, stderr, and the sources with their options."""

    def translate(texts, **options):
        recorder.asked += [(text, options) for text in texts]
        return [Translation(f"reply {len(recorder.asked)}", -1.0) for _ in texts]

    monkeypatch.setattr(recorder, "translate", translate)
    monkeypatch.setattr(recorder, "source_length", lambda text, **options: len(text.split()))
    recorder.turns, recorder.max_source_length = Turns("</s>"), 100

    def talk(text, *arguments):
        code, out, err, asked = call("chat", *arguments, stdin=text)
        return code, out.splitlines(), err, asked

    return talk


def test_history_grows_until_it_is_reset(talk):
    code, replies, err, asked = talk("Hello.\n\nAnd you?\n/reset\nHello.")
    assert (code, err, replies) == (0, "", ["reply 1", "reply 2", "reply 3"])
    sources = [text for text, _ in asked]
    assert sources == ["Hello.", "Hello. </s> reply 1 </s> And you?", "Hello."]


def test_replies_are_drawn_with_the_options_given_or_searched_for(talk):
    *_, asked = talk("a\nb\n", "--seed", "5", "--temperature", "0.7")
    drawn = {"sampling": True, "top_p": 0.9, "temperature": 0.7}
    assert [options for _, options in asked] == [{**drawn, "seed": 5}, {**drawn, "seed": 6}]
    *_, asked = talk("a\n", "--beam-size", "2")
    assert asked[0][1] == {"beam_size": 2}


def test_a_message_that_is_refused_is_one_line_and_the_conversation_continues(talk):
    code, replies, err, asked = talk("a </s> b\nc\n")
    assert (code, replies, [text for text, _ in asked]) == (0, ["reply 1"], ["c"])
    rule = "A message is one turn, without '</s>'. Received: 'a </s> b'."
    assert err == f"keras-transformer: {rule}\n"
