"""A conversation with a dialogue model: messages, replies, and the turns that fit in a source."""

import numbers
from collections.abc import Iterator
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import INT32, check
from keras_transformer.text.sentences import largest_count


class Conversation:
    """Conversation of messages and replies; each reply answers all earlier turns.

    Args:
        translator: `Translator` of a model that was trained on conversations.
        seed: Seed of the first reply; later replies add their number.
        **options: Options of `Translator.translate`.

    Attributes:
        history: The turns so far, the oldest first.

    Raises:
        InputError: The model was trained without turns, or an option is invalid.
    """

    def __init__(self, translator: Any, seed: int = 0, **options: Any):
        if translator.turns is None:
            raise InputError(
                "A conversation needs a model that was trained on some: `text.turn_separator` of "
                "its recipe."
            )
        rule = "an integer of at least -2**31 and below 2**31"
        check("seed", seed, rule, numbers.Integral, -INT32, INT32 - 1)
        self.translator, self.seed, self.options = translator, int(seed), options
        translator.check_options(**self._options(0))
        self.history: list[str] = []

    def reply(self, message: str) -> Iterator[str]:
        """Yields the reply to a message as it grows; an export yields the complete reply.

        Both are added to the history when the reply is complete.

        Raises:
            InputError: The message is too long, or contains the separator of turns.
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
        """Returns the options of a reply, with its own seed if it is sampled or a seed is set."""
        if not self.seed and not self.options.get("sampling"):
            return self.options
        seed = (self.seed + number + INT32) % (2 * INT32) - INT32  # After the largest, the least.
        return {**self.options, "seed": seed}

    def source(self, message: str) -> str:
        """Returns the model's source: the last turns that fit, and the message.

        Raises:
            InputError: See `reply`.
        """
        turns, engine = self.translator.turns, self.translator.engine
        tokenizer, limit = engine.source_tokenizer, engine.max_source_length
        if turns.are_in(message) or (
            tokenizer and tokenizer.turn_id in tokenizer.tokenize(message)
        ):
            raise InputError(
                f"A message is one turn, without {turns.separator!r}. Received: {message[:40]!r}."
            )
        all_turns = [*self.history, message]

        def length(count):
            joined = turns.join(all_turns[-count:])
            return self.translator.source_length(joined, **self.options)

        # Without a tokenizer the length is an upper bound, and the export truncates the message.
        if tokenizer and length(1) > limit:
            raise InputError(f"A message has at most {limit} tokens. Received: {length(1)}.")
        count = largest_count(lambda count: length(count) <= limit, len(all_turns))
        return turns.join(all_turns[-max(count, 1) :])
