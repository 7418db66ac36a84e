"""Validation loss and BLEU of finished or running trainings over their epochs, as a picture.

    pip install ".[plots]"
    python -m benchmarks.curves runs/one runs/other --plot curves.png

Each run is named by its folder. A run whose recipe does not select by BLEU has a curve of its loss
alone.
"""

import argparse
import pathlib

from benchmarks.measure import subplots
from keras_transformer.training.run_folder import RunFolder

CURVES = {"val_loss": "validation loss, nats a token", "val_bleu": "validation BLEU, greedy search"}


def plot(histories, path):
    """Draws a panel for each measure and a line for each run.

    Args:
        histories: Lines of `history.csv` by the name of the run.
        path: PNG file.
    """
    figure, [panels] = subplots(1, len(CURVES), size=(8.4, 3.4))
    for axes, (column, label) in zip(panels, CURVES.items(), strict=True):
        for name, rows in histories.items():
            points = [(row["epoch"], row[column]) for row in rows if column in row]
            axes.plot(*zip(*points, strict=True) if points else ([], []), label=name)
        axes.set(xlabel="epoch", ylabel=label)
        axes.grid(alpha=0.3)
    # The steep rise of the first epochs would leave little room for the rest.
    most = [row["val_bleu"] for rows in histories.values() for row in rows if "val_bleu" in row]
    panels[1].set_ylim(bottom=max(most, default=0) / 2)
    panels[0].legend()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves", description=__doc__.splitlines()[0]
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--plot", required=True, metavar="FILE.png")
    options = parser.parse_args()
    runs = {pathlib.Path(run).name: RunFolder(run).history() for run in options.runs}
    for name, rows in runs.items():
        best = max(rows, key=lambda row: row.get("val_bleu", -row["val_loss"]))
        figures = {column: round(best[column], 2) for column in CURVES if column in best}
        print(f"{name}: {len(rows)} epochs, the best is {int(best['epoch'])}: {figures}")
    plot(runs, options.plot)


if __name__ == "__main__":
    main()
