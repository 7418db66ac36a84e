"""Formats × features: a format has a feature as the trained model, or lacks it in one line.

A format or a feature that is new has new cells, which fail until somebody has decided them: its
row in `TAKES` of `export_features`, and in `LACKS` if it has an engine. The table of the page of
limits is made of these rows.
"""

import pytest
from export_features import FEATURES, LACKS, OWN_CHANCE, TAKES, message_of
from translations import check_same

from keras_transformer import Translator
from keras_transformer.errors import InputError
from keras_transformer.formats import FORMATS

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", ""]
MARKED = ["a <b>man</b> runs.", "<i>two</i> dogs", ""]
READ_HERE = sorted({row.name for row in FORMATS.values() if row.engine is not None})


def call(translator, feature, search, targets):
    """What a translator makes of the texts with a feature."""
    options = {**search, **FEATURES[feature]}
    if feature == "score":
        options.pop("beam_size", None)
        return translator.score(TEXTS, targets, **options)
    if feature == "stream":
        return [*translator.stream(TEXTS[0])]
    return translator.translate(MARKED if feature == "markup" else TEXTS, **options)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("format", READ_HERE)
def test_a_format_has_a_feature_of_the_trained_model_or_lacks_it_in_one_line(
    engines_of, format, feature
):
    assert format in LACKS, f"add a row to LACKS: which features does an export as {format} lack?"
    trained, exported = map(Translator, engines_of(format))
    targets = ["two dogs", "a man", ""]
    targets = list(map(str.upper, targets)) if format == "ctranslate2" else targets
    if message := message_of(format, feature):
        with pytest.raises(InputError, match=message) as caught:
            call(exported, feature, {}, targets)
        assert "\n" not in str(caught.value)
        return
    received = call(exported, feature, {}, targets)
    if (format, feature) not in OWN_CHANCE:
        # A search is fixed when it is exported.
        search = {"beam_size": 3, "length_penalty": 0.8}
        check_same(call(trained, feature, search, targets), received)
    assert all(translation.text for translation in received[:2])


EXPORT_OPTIONS = {
    "languages": "en-de",
    "beam_size": 2,
    "early_stopping": False,
    "shortlist": True,
    "quantize": "int8",
    "source_lengths": [16],
    "signatures": ["beam"],
    "n_best": 2,
    "package_version": "1.1",
}


@pytest.mark.parametrize("option", EXPORT_OPTIONS)
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_format_takes_an_option_of_its_export_or_refuses_it_in_one_line(format, option):
    assert format in TAKES, f"add a row to TAKES: which options does an export as {format} take?"
    options, values = FORMATS[format].load("options"), {option: EXPORT_OPTIONS[option]}
    if option in TAKES[format]:
        assert getattr(options(**values), option) != getattr(options(), option)
    else:
        with pytest.raises(InputError, match=f"no option `{option}`") as caught:
            options(**values)
        assert "\n" not in str(caught.value)


def test_tables_have_rows_only_of_formats():
    assert LACKS.keys() <= set(READ_HERE) and TAKES.keys() <= FORMATS.keys()
