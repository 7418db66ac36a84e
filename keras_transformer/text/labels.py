"""Labels of a classifier."""

import json
import os
from collections.abc import Iterable

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import write_output
from keras_transformer.base.options import received
from keras_transformer.base.reading import read_json


class Labels:
    """List of labels whose indices are their ids: a classifier's target tokenizer.

    Args:
        names: Different strings; see `of_texts`.

    Example:

    >>> Labels(["no spam", "spam"]).tokenize(["spam"])
    [[1]]
    """

    def __init__(self, names: Iterable[str]):
        self.names = list(names)
        self._ids = {name: [id] for id, name in enumerate(self.names)}

    @classmethod
    def of_texts(cls, labels: Iterable[str]) -> "Labels":
        """Collects the sorted labels of a text, without blank labels."""
        return cls(sorted({label for label in labels if label.strip()}))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Labels":
        """Reads the file of `save`; raises `InputError` if it is missing or invalid.

        Args:
            path: Path of a JSON list of strings.
        """
        names = read_json(path, list, noun="a list of labels")
        if not all(isinstance(name, str) for name in names):
            raise InputError(f"{path}: expected a list of labels. Received: {received(names)}.")
        return cls(names)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON list of strings."""
        write_output(path, self.model_bytes)

    @property
    def model_bytes(self) -> bytes:
        """Content of the file; equal labels have equal bytes."""
        return (json.dumps(self.names, ensure_ascii=False, indent=0) + "\n").encode("utf-8")

    @property
    def vocabulary_size(self) -> int:
        """Number of labels."""
        return len(self.names)

    def check(self, label: str, where: str) -> None:
        """Raises `InputError`, which begins with `where`, for an unknown label."""
        if label not in self._ids:
            known_labels = ", ".join(self.names)
            raise InputError(
                f"{where}: expected a label that was trained on ({known_labels:.200}). "
                f"Received: {label!r:.80}."
            )

    def tokenize(self, labels: Iterable[str], add_eos: bool = False) -> list[list[int]]:
        """Returns a list with the id of each label, without EOS; raises the error of `check`."""
        labels = list(labels)
        for index, label in enumerate(labels):
            self.check(label, f"label {index + 1}")
        return [self._ids[label] for label in labels]
