"""The separator of turns: one token, and never a text of a turn."""

from keras_transformer.text import Tokenizer

TEXTS = ["hello there", "what a day </s> hello you", "good day to you </s> well well"] * 9


def test_the_separator_is_one_token_and_no_text_of_a_turn_is():
    tokenizer = Tokenizer.train_from_texts(TEXTS, 23, turn_separator="</s>")
    ids = tokenizer.tokenize("hello </s> you")
    assert ids.count(tokenizer.turn_id) == 1 and tokenizer.turn_id == 4
    assert tokenizer.detokenize(ids) == "hello </s> you"
    for text in ("hello</s>you", "hello < /s> you", "<s> hello"):
        assert tokenizer.turn_id not in tokenizer.tokenize(text)
    assert Tokenizer.train_from_texts(TEXTS, 23).turn_id is None
