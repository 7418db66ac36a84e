"""History of a run: one line per epoch, and the epochs that its lines choose."""

import csv
import io
import pathlib
from typing import Any

from keras_transformer.base.files import write_whole
from keras_transformer.base.reading import reading_errors

Rows = list[dict[str, float]]


def write_history(path: pathlib.Path, rows: Rows) -> None:
    """Writes `history.csv`: dicts of numbers, in the order of the epochs."""
    text = io.StringIO()
    # Epochs of a later version may have more measures than earlier epochs.
    names = dict.fromkeys(["epoch", *(name for row in rows for name in row)])
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def read_history(path: pathlib.Path) -> Rows:
    """Returns the lines of `history.csv` as dicts of numbers, in the order of the epochs.

    Raises:
        InputError: The file is damaged.
    """
    if not path.exists():
        return []
    rows: Rows = []
    with reading_errors(path, "the history of a training"):
        text = path.read_text(encoding="utf-8")
        for epoch, row in enumerate(csv.DictReader(io.StringIO(text)), start=1):
            if None in row or None in row.values():
                raise ValueError(f"line {epoch + 1} has another number of columns")
            values = {key: float(value) for key, value in row.items() if value}
            if values.get("epoch") != epoch or "val_loss" not in values:
                raise ValueError(f"line {epoch + 1} must have the `val_loss` of epoch {epoch}")
            rows.append(values | {"epoch": epoch})  # An integer, to be written again as it is.
    return rows


def best_row(rows: Rows, select_by: str) -> dict[str, float]:
    """Returns the best line of a history, by lowest `val_loss` or highest value of a measure.

    The validation loss decides between equal values.
    """
    sign, column = 1 if select_by == "loss" else -1, measure(select_by)
    return min(rows, key=lambda row: (sign * row[column], row["val_loss"]))


def measure(select_by: str) -> str:
    """Returns the name, in a history, of the measure that selects the best epoch."""
    return "val_token_accuracy" if select_by == "accuracy" else f"val_{select_by}"


def averaged_epochs(rows: Rows, training: Any) -> list[int]:
    """Returns the epochs whose models are averaged if training ends after these lines.

    Args:
        rows: Lines of a history.
        training: Section `training` of the recipe.
    """
    if training.average_epochs is None:
        return []
    return [int(row["epoch"]) for row in rows[-training.average_epochs :]]
