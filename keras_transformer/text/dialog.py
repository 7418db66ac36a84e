"""Turns of a conversation as one text: what a model that answers reads."""

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from keras_transformer.errors import InputError


class Turns(NamedTuple):
    """Joins the turns of a conversation to one source, the oldest first.

    Attributes:
        separator: Word between two turns, with a space on either side; one token.
        kept: The last turns that the model reads; None: all.
    """

    separator: str
    kept: int | None = None

    def split(self, text: str) -> list[str]:
        """The turns of a source."""
        return text.split(f" {self.separator} ")

    def join(self, turns: Sequence[str]) -> str:
        """One source, of the turns that are kept.

        >>> Turns("</s>", kept=2).join(["Hello.", "Hi!", "How are you?"])
        'Hi! </s> How are you?'
        """
        return f" {self.separator} ".join(turns[-self.kept :] if self.kept else turns)

    def are_in(self, text: str) -> bool:
        """True if a text holds the separator, in any of its spellings."""
        words = unicodedata.normalize("NFKC", text).replace("\u2581", " ").casefold().split()
        return any(word.startswith(self.separator.casefold()) for word in words)


class Conversation:
    """Messages and replies, each reply an answer to all that was said before.

    Args:
        translator: `Translator` of a model that was trained on conversations.
        **options: Of `Translator.translate`; of a reply its number, from 0, is added to `seed`.

    Attributes:
        history: The turns so far, the oldest first.

    Raises:
        InputError: The model knows no turns, or has no such option.
    """

    def __init__(self, translator: Any, seed: int = 0, **options: Any):
        if translator.turns is None:
            raise InputError(
                "A conversation needs a model that was trained on some: `text.turn_separator` of "
                "its recipe."
            )
        self.translator, self.seed, self.options = translator, seed, options
        translator.translate([], **self._options(0))
        self.history: list[str] = []
        tokenizer = translator.engine.source_tokenizer
        self._turn_id = tokenizer.turn_id if tokenizer else None
        # Without a tokenizer at hand no text has more tokens than bytes, a space before them.
        tokenize = tokenizer.tokenize if tokenizer else lambda text: list(f" {text}".encode())
        self._ids = functools.cache(tokenize)  # of a turn, which no other turn changes

    def reply(self, message: str) -> Iterator[str]:
        """The reply to a message as it grows, from a run folder; at once from an export.

        Both are added to the history when the reply is whole.

        Raises:
            InputError: The message by itself is too long, or has the separator of turns in it.
        """
        source, options = self.source(message), self._options(len(self.history) // 2)
        texts: Iterator[str]
        if "stream" in self.translator.engine.capabilities and options.get("beam_size", 1) == 1:
            texts = self.translator.stream(source, **options)
        else:
            texts = iter([self.translator.translate([source], **options)[0].text])
        text = ""
        for text in texts:
            yield text
        self.history += [message, text]

    def _options(self, number):
        """Options of a reply: with samples, or where a user gave a seed, a seed of its own."""
        if not self.seed and not self.options.get("sampling"):
            return self.options
        return {**self.options, "seed": self.seed + number}

    def source(self, message: str) -> str:
        """The model's source: the message after the last turns that fit.

        Raises:
            InputError: See `reply`.
        """
        turns, limit = self.translator.turns, self.translator.engine.max_source_length
        if turns.are_in(message) or self._turn_id in self._ids(message):
            raise InputError(
                f"A message is one turn, without {turns.separator!r}. Received: {message[:40]!r}."
            )
        said, count = [message], len(self._ids(message)) + 1  # and EOS
        if count > limit:
            raise InputError(f"A message has at most {limit} tokens. Received: {count}.")
        for turn in reversed(self.history):
            count += len(self._ids(turn)) + len(self._ids(turns.separator))
            if count > limit:
                break
            said.append(turn)
        return turns.join(said[::-1])
