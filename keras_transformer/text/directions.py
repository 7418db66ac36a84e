"""Directions of texts: the languages that a call names, or that the texts name themselves."""

from collections.abc import Sequence
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.text.languages import Direction, Languages
from keras_transformer.text.per_text import LANGUAGE_OPTIONS, repeated, values_of_texts


class Directions:
    """Finds the directions of the texts that a model translates.

    Args:
        languages: `Languages` of the model, None if they are unknown.
        source_tokenizer: `Tokenizer` of the sources, which tells whether a text begins with the
            token of a language; None for a model whose texts do not.
        target_tokenizer: `Tokenizer` of the targets, for a model that reads token ids: directions
            then have the ids of their tokens.
    """

    def __init__(
        self,
        languages: Languages | None,
        source_tokenizer: Any = None,
        target_tokenizer: Any = None,
    ):
        self._languages = languages
        self._tokenizers = source_tokenizer, target_tokenizer

    def of(
        self,
        texts: Sequence,
        source_language: str | Sequence[str] | None = None,
        target_language: str | Sequence[str] | None = None,
    ) -> list[Direction]:
        """Returns the direction of each text; a text may begin with the token of a language itself.

        Raises:
            InputError: The model lacks a language or a direction, or a language must be named.
        """
        named = tuple(map(values_of_texts, (source_language, target_language)))
        if self._languages is None:
            if named != (None, None):
                rule = "`source_language` and `target_language` need a model that names languages"
                values = f"{received(source_language)} and {received(target_language)}"
                raise InputError(f"{rule}. Received: {values}. Leave them out.")
            return [Direction()] * len(texts)
        if len(texts) == 0 and not any(isinstance(value, tuple) for value in named):
            self.check(*named)
        values_by_name = [
            repeated(name, value, len(texts))
            for name, value in zip(LANGUAGE_OPTIONS, named, strict=True)
        ]
        pairs, directions = list(zip(*values_by_name, strict=True)), dict[tuple, Direction]()
        directions_of_texts = []
        for index, pair in enumerate(pairs):
            if pair == (None, None) and self.are_named_in(texts[index]):
                directions_of_texts.append(Direction())
                continue
            is_named = all(code is None or isinstance(code, str) for code in pair)
            if not is_named or pair not in directions:  # Another value may be unhashable.
                try:
                    directions[pair] = self.between(*pair)
                except InputError as error:
                    is_of_all = named == pair and not self.have_tags
                    raise InputError(error.message, None if is_of_all else index) from None
            directions_of_texts.append(directions[pair])
        return directions_of_texts

    def between(self, source_language: str | None, target_language: str | None) -> Direction:
        """Returns the direction between two languages; None stands for the only language."""
        assert self._languages is not None
        codes = self._languages.direction(source_language, target_language)
        source_tokenizer, target_tokenizer = self._tokenizers
        if target_tokenizer is None:
            return Direction(codes=codes)
        tokens = self._languages.tokens_of(*codes)
        return tokens.to_ids(source_tokenizer.id_of, target_tokenizer.id_of)

    def check(self, source_language: Any = None, target_language: Any = None) -> None:
        """Checks languages without texts; raises the `InputError` of `of`."""
        named = tuple(map(values_of_texts, (source_language, target_language)))
        counts = [len(value) for value in named if isinstance(value, tuple)] or [1]
        if named != (None, None) or not self.have_tags:
            self.of([None] * max(counts), *named)

    def approximated(
        self, source_language: str | None = None, target_language: str | None = None
    ) -> list[str]:
        """Returns a line for each language that the model lacks, with the one that is taken."""
        named = source_language, target_language
        if self._languages is None or named == (None, None):
            return []
        return [
            f"The model has no {spelling}; its nearest language is {code}."
            for spelling, code in self._languages.approximations(*named)
        ]

    @property
    def have_tags(self) -> bool:
        """True where texts may begin with the token of a language themselves."""
        if self._languages is None or self._tokenizers[0] is None:
            return False
        tags = self._tokenizers[0].tag_tokens.values()
        return bool({*tags} & {*self._languages.tokens.values()})

    def are_named_in(self, text: Any) -> bool:
        """Returns whether a text itself begins with the token of a language."""
        if not isinstance(text, str) or self._languages is None or not self.have_tags:
            return False
        return self._tokenizers[0].split_tag(text)[0] in self._languages.tokens.values()
