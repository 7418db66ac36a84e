"""Kinds of training sources: sentences, paragraphs, or texts without letters."""

from collections.abc import Sequence

from keras_transformer.engine.steps.tag import without_tags
from keras_transformer.text.capitals import is_in_capitals
from keras_transformer.text.sentences import TextRules, has_letters, sentence_ends

# One in a hundred pairs, after the first, takes no time beside the tokenizer.
_PAIRS_LOOKED_AT, _LATER_PAIRS = 100_000, 100
_FEW_SENTENCES = 0.1  # share of sources of several sentences
_FEW_CAPITALS = 0.01


class KindsOfSources:
    """Counts sources of several sentences, and those without letters, among training pairs.

    Tags before a source do not count.

    Attributes:
        counted: Number of pairs that were looked at.
        with_sentences: Number of sources of more than one sentence.
        without_letters: Number of sources without letters.
        not_copied: Number of these whose target is another text.
        in_capitals: Number of sources in capitals.
    """

    def __init__(self) -> None:
        self.counted = self.with_sentences = self.in_capitals = 0
        self.without_letters = self.not_copied = 0

    def add(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Looks at some pairs: at all of the first, and at one of a hundred later."""
        every = 1 if self.counted < _PAIRS_LOOKED_AT else _LATER_PAIRS
        for source, target in pairs[::every]:
            source = without_tags(source, "")
            self.counted += 1
            self.with_sentences += len(sentence_ends(source)) > 1
            self.in_capitals += is_in_capitals(source)
            if not has_letters(source):
                self.without_letters += 1
                self.not_copied += source.strip() != target.strip()

    @property
    def text_rules(self) -> TextRules:
        """Rules that the pairs suggest.

        A model that has learned from single sentences reads single sentences, and one that has
        seen no text in capitals reads none. One that has learned to rewrite digits, such as dates,
        reads them.
        """
        splits = 0 < self.counted and self.with_sentences < _FEW_SENTENCES * self.counted
        copies = 2 * self.not_copied <= self.without_letters
        return TextRules(splits, copies, self.in_capitals <= _FEW_CAPITALS * self.counted)

    def __str__(self):
        share = self.with_sentences / max(self.counted, 1)
        way = "sentence by sentence" if self.text_rules.split_sentences else "as one segment"
        return f"{share:.1%} of the sources have several sentences: `translate` reads a text {way}"
