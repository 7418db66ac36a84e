import html.parser

from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.recipe import TrainingSection
from keras_transformer.training.report import report


class Page(html.parser.HTMLParser):
    """Counts elements, and collects the points of curves and what is not markup."""

    def __init__(self, text):
        super().__init__()
        self.names, self.points, self.text, self.outside, self.cells = [], [], "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        values = dict(attributes)
        if tag == "polyline":
            self.points.append([p.split(",") for p in values["points"].split()])
        self.outside += [v for k, v in attributes if k in ("src", "href")]

    def handle_data(self, data):
        self.text += data
        if self.names[-1] == "td" and data.strip():
            self.cells.append(data)


def test_a_page_has_curves_the_best_epochs_samples_and_the_recipe(tmp_path):
    folder = RunFolder(tmp_path / "<run>")
    folder.path.mkdir()
    losses = [3.0, 1.0, 2.0, float("inf")]
    folder.write_history(
        [{"epoch": i + 1, "loss": 4.0, "val_loss": loss} for i, loss in enumerate(losses)]
    )
    files = {"train": {"source": "a"}, "validation": {"source": "b"}}
    folder.write_recipe(Recipe.from_dict({"data": files}))
    folder.samples_file.write_text("epoch 1\n  outdated\nepoch 2\n  source: <script>1 & 2\n")
    average = {"epochs": [1, 2], "is_the_best_model": True}
    metrics = {"training_minutes": 1.5, "average": average}
    text = report(folder, TrainingSection(), metrics)
    page = Page(text)
    assert "<run>" in page.text and "source: <script>1 & 2" in page.text
    assert "script" not in page.names and not page.outside and "outdated" not in page.text
    assert "The average of epochs 1, 2 is the model." in page.text
    assert "warmup_steps: 4000" in page.text
    # The lowest loss is drawn lowest, at the bottom of the picture, and the highest on top.
    training, validation = page.points
    (top,) = {float(y) for _, y in training}
    heights = [float(y) for _, y in validation]
    assert heights[1] > heights[2] > heights[0] > heights[3] == top  # downwards in SVG
    # Epochs and losses, best first.
    assert page.cells == ["2", "1", "3", "2", "1", "3", "4", "inf"]
