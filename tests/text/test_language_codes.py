"""Codes that people type: each stands for the nearest language that a model has."""

import difflib
import json
import pathlib
import re
import zipfile

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.text import language_codes, languages
from keras_transformer.text.language_codes import (
    closest_codes,
    includes,
    is_exact,
    is_known,
    primary_language,
    spellings_of,
    suggested_codes,
)
from keras_transformer.text.languages import Languages, codes_of, languages_of_tags

ORACLES = pathlib.Path(__file__).parents[1] / "data" / "oracles"


def languages_in(name):
    """Tokens of languages of a published vocabulary, as its program writes them."""
    with zipfile.ZipFile(ORACLES / f"{name}.zip") as archive:
        tokens = json.loads(archive.read("added_tokens.json"))
    return sorted(
        token for token in tokens if re.fullmatch("__[a-z]+__|[a-z]{3}_[A-Z][a-z]{3}", token)
    )


NLLB, M2M100 = languages_in("languages_nllb"), languages_in("languages_m2m100")
OPUS = ["cmn", "cmn_Hans", "cmn_Hant"]
MODELS = {
    "nllb": Languages(codes_of(NLLB), source_prefix="source", target_prefix="target"),
    "m2m100": Languages(codes_of(M2M100), source_prefix="source", target_prefix="target"),
    "opus": languages_of_tags({code: f">>{code}<<" for code in OPUS}),
}
# A source that no test translates to.
SOURCES = {"nllb": "vie_Latn", "m2m100": "vi"}


def token_of(model, spelling):
    """The model's own name of the language that a code chooses as a target."""
    tokens = MODELS[model].tokens_of(SOURCES.get(model), spelling)
    return "".join(tokens.target_prefix or tokens.source_prefix).strip("_><")


# Of each model: the token of a language, and the codes that choose it.
CHOSEN = {}
CHOSEN["nllb"] = """
# Macro-languages stand for their usual member, or for the only one.
pes_Arab: fa fa-IR pes per fas fa-Arab; prs_Arab: fa-AF prs; pbt_Arab: ps ps-AF pus;
nob_Latn: no nb nb-NO no-NO nor nob no-bok; nno_Latn: nn nn-NO nno; aka_Latn: ak aka;
twi_Latn: tw twi tw-GH; quy_Latn: qu qu-PE que; fuv_Latn: ff ff-NG ful;
arb_Arab: ar ar-EG ar-MA ar-001 ara arb ar-arb; ary_Arab: ary ar-ary; arz_Arab: arz;
kmr_Latn: ku ku-TR kur; ckb_Arab: ckb ckb-IQ; azj_Latn: az az-Latn az-AZ; azb_Arab: azb;
khk_Cyrl: mn mn-MN mon; zsm_Latn: ms ms-BN ms-MY may zsm; swh_Latn: sw sw-KE swa;
est_Latn: et ekk et-EE; lvs_Latn: lv lv-LV lav; ltg_Latn: ltg; npi_Deva: ne ne-NP nep;
ory_Orya: or or-IN ori; uzn_Latn: uz uz-Latn-UZ uzb; als_Latn: sq sq-XK alb; ydd_Hebr: yi ji yid;
grn_Latn: gn gug gn-PY; plt_Latn: mg mlg; ayr_Latn: ay aym; gaz_Latn: om orm; knc_Latn: kr kr-Latn;
dik_Latn: din;
# The usual script, or the only one of a model.
zho_Hans: zh zho chi cmn zh-CN zh-SG zh-Hans zh-Hans-CN zh-cmn-Hans zh_CN;
zho_Hant: zh-TW zh-HK zh-MO zh-Hant zh-Hant-HK zh_TW; yue_Hant: yue yue-HK zh-yue;
kas_Arab: ks ks-Arab; kas_Deva: ks-Deva; ace_Latn: ace; ace_Arab: ace-Arab; bjn_Latn: bjn;
bjn_Arab: bjn-Arab; crh_Latn: crh crh-Latn; tzm_Tfng: tzm; sat_Beng: sat; dzo_Tibt: dz dz-BT;
bod_Tibt: bo bo-CN tib; srp_Cyrl: sr sr-Cyrl sr-RS scc; pan_Guru: pa pa-IN pa-Guru;
# Regions and variants are dropped.
por_Latn: pt-BR pt-PT pt_br; eng_Latn: en-US en-IN eng en-UK EN-us; spa_Latn: es-419 es-MX;
fra_Latn: fr-CA; deu_Latn: de-AT ger de-1996 de-DE-u-co-phonebk; cat_Latn: ca-valencia;
# Earlier codes.
ind_Latn: in id; heb_Hebr: iw; jav_Latn: jw; ron_Latn: mo; hrv_Latn: hr scr; bos_Latn: bs;
tgl_Latn: tl fil tgl; bam_Latn: bm;
"""
CHOSEN["m2m100"] = """
no: nb nb-NO no; ns: nso ns nso-ZA; pt: pt-BR pt-PT; zh: zh zh-CN zh-Hans cmn zho_Hans;
en: en-GB eng_Latn; tl: fil tl tgl_Latn; fa: pes_Arab fa-IR; he: iw heb; sr: sr-Cyrl srp_Cyrl;
ms: zsm_Latn ms-BN; yi: ydd ji; hr: hr hrv_Latn;
"""
CHOSEN["opus"] = """
cmn: zh zho chi cmn; cmn_Hans: zh-Hans zh-CN zh-SG zho_Hans cmn-Hans;
cmn_Hant: zh-TW zh-HK zh-Hant zho_Hant zh-Hant-HK;
"""
TYPED = [
    (model, spelling, row.partition(":")[0].strip())
    for model, table in CHOSEN.items()
    for row in re.sub("#.*", "", table).split(";")
    for spelling in row.partition(":")[2].split()
]


@pytest.mark.parametrize(("model", "spelling", "token"), TYPED)
def test_a_code_chooses_the_nearest_language_of_a_model(model, spelling, token):
    assert token_of(model, spelling) == token
    assert token_of(model, f" {spelling.upper()}") == token


@pytest.mark.parametrize("model", MODELS)
def test_each_name_of_a_model_chooses_its_own_language(model):
    for code, token in MODELS[model].tokens.items():
        for spelling in (code, token, token.strip("_><")):
            if token.strip("_><") != SOURCES.get(model):
                assert token_of(model, spelling) == token.strip("_><"), spelling


# Codes of another script, of another language, also of one macro-language, and no codes; `>` is
# before the model's nearest token.
REFUSED = {
    "nllb": (
        "sr-Latn>srp_Cyrl sr-ME>srp_Cyrl pa-Arab>pan_Guru pa-PK>pan_Guru uz-Cyrl>uzn_Latn "
        "mn-Mong>khk_Cyrl yue-Hans>yue_Hant az-Arab>azb_Arab ku-Arab>ckb_Arab ff-Adlm>fuv_Latn "
        "tlh> sh>srp_Cyrl wuu>yue_Hant zh-min-nan>yue_Hant quz>quy_Latn zh-CHT> German> und> "
        "x-klingon>"
    ),
    "m2m100": (
        "zh-Hant>zh zh-TW>zh zho_Hant>zh sr-Latn>sr pa-Arab>pa tlh>th sh>sr nn>no yue>zh ary>ar "
        "ckb>"
    ),
    "opus": "yue>cmn ja>",
}
ROWS = [(model, *row.split(">")) for model, rows in REFUSED.items() for row in rows.split()]
ROWS += [("nllb", "", ""), ("nllb", "en" * 100_000, "")]


@pytest.mark.parametrize(("model", "spelling", "nearest"), ROWS)
def test_another_script_or_language_is_refused_with_the_nearest(model, spelling, nearest):
    codes = {token.strip("_><"): code for code, token in MODELS[model].tokens.items()}
    with pytest.raises(InputError, match="`target_language` must be .* Received: ") as caught:
        token_of(model, spelling)
    assert len(str(caught.value)) < 400
    if nearest:
        assert f"`{codes[nearest]}`" in str(caught.value).partition("Did you mean")[2]


@pytest.mark.parametrize(
    ("spelling", "codes", "closest"),
    [
        ("en", ["en-GB", "en-US"], "en-US"),
        ("en-AU", ["en-US", "en-GB"], "en-GB"),
        ("en-GB", ["en-US", "en"], "en"),
        ("en-CA", ["fr-CA", "en-US"], "en-US"),
        ("pt-PT", ["pt-BR", "pt"], "pt"),
        ("pt-PT", ["pt-BR"], "pt-BR"),
        ("pt-AO", ["pt-BR", "pt-PT"], "pt-PT"),
        ("es-AR", ["es", "es-MX", "es-419"], "es-419"),
        ("zh-MO", ["zh-Hans", "zh-TW", "zh-HK"], "zh-HK"),
        ("zh-CN", ["zh-TW"], None),
        ("zh", ["zh-Hant"], None),
        ("sr", ["sr-Latn"], None),
        # Of several members none is meant; some are languages of their own.
        ("ar", ["arz"], "arz"),
        ("ar", ["arz", "ary"], None),
        ("sh", ["hr"], None),
        ("ms", ["id"], None),
        ("no", ["nn"], None),
        ("zh", ["yue"], None),
        ("lv", ["ltg"], None),
    ],
)
def test_the_nearest_region_wins_and_what_is_ambiguous_is_nothing(spelling, codes, closest):
    assert next(iter(closest_codes(spelling, codes)), None) == closest


def test_the_nearest_codes_that_are_a_direction_are_taken():
    languages = Languages(directions=(("en-GB", "de"), ("en-US", "fr"), ("pt-BR", "pt-PT")))
    assert languages.direction("en", "de") == ("en-GB", "de")
    assert languages.direction("en", "fr") == ("en-US", "fr")
    assert languages.direction("pt", "pt") == ("pt-BR", "pt-PT")
    assert languages.direction(None, "pt-BR") == ("pt-BR", "pt-PT")


def test_what_is_taken_for_a_code_that_a_model_lacks_is_told():
    nllb, m2m100 = MODELS["nllb"], MODELS["m2m100"]
    assert m2m100.approximations("pt-BR", "nb") == [("pt-BR", "pt"), ("nb", "no")]
    assert nllb.approximations("ps", "zh-TW") == [("ps", "pbt"), ("zh-TW", "zh-Hant")]
    for spelling in ("de", "deu", "ger", "DEU_latn", "de-Latn"):
        assert nllb.approximations(spelling, "iw") == []
    assert is_exact("zh", "cmn") and is_exact("zh-Hans", "zh") and is_exact("x-a", "X_a")
    assert (
        not is_exact("zh-CN", "zh") and not is_exact("sr-Latn", "sr") and not is_exact("x-a", "x")
    )


def test_codes_of_all_imported_models_and_private_codes_are_known_and_names_are_not():
    private = ["x-klingon", "qaa", "art-x-a", "en_XX", "zh-min-nan", "de-1996", "ar-arz"]
    assert [
        code
        for code in [*NLLB, *(token.strip("_") for token in M2M100), *OPUS, *private]
        if not is_known(code)
    ] == []
    names = ["xx", "english", "spanish", "jp", "en-Xxxx", "", "x", "en,de", "e" * 10_000]
    assert [name for name in names if is_known(name)] == []


@pytest.mark.parametrize(
    ("code", "language"),
    [("en", "en"), ("pt-BR", "pt"), ("deu_Latn", "de"), ("zho_Hans", "zh"), (None, None)]
    + [("no code", None), ("cmn", "zh"), ("x-klingon", None)],
)
def test_the_main_part_of_a_code_is_that_of_its_language(code, language):
    assert primary_language(code) == language


# langcodes calls itself once for each part of a code.
@pytest.mark.parametrize("code", ["en" + "-abcde" * 1000, "x" * 10**6, "en-" * 10**5, "_" * 10**5])
def test_a_code_of_any_length_is_answered_at_once_and_not_kept(code):
    languages = Languages(directions=(("en", "pt"), ("de", "pt")))
    before = language_codes._parsed.cache_info().currsize
    assert primary_language(code) is None and not is_known(code)
    assert closest_codes(code, ["en"]) == () and languages.known_codes(code, "pt") == (code, "pt")
    with pytest.raises(InputError, match="`source_language` must be one of en, de"):
        languages.direction(code, "pt")
    assert language_codes._parsed.cache_info().currsize <= before + 2  # en and pt


def test_no_cache_of_codes_grows_without_a_limit():
    caches = [value for value in vars(language_codes).values() if hasattr(value, "cache_info")]
    caches += [value for value in vars(languages).values() if hasattr(value, "cache_info")]
    assert caches and all(cache.cache_info().maxsize for cache in caches)


def test_names_of_languages_and_codes_of_countries_suggest_codes():
    for spelling, code in {"Spanish": "es", "germna": "de", "cz": "cs", "GR": "el"}.items():
        assert suggested_codes(spelling) == [code]
    # South Korea's kr is a language itself, and xx is no country.
    for spelling in ("kr", "xx", "", "e" * 10_000):
        assert suggested_codes(spelling) == []


INCLUDED = (
    "en,en-GB en,eng en_us,eng-US he,iw no,nb-NO zh-Hans,zh-CN zh-Hant,zh-HK zh-Hant-TW,zh-TW"
)
INCLUDED += " en-US,en x-a,x-a-b de,de-1996 sr,sr-RS zh,cmn-CN"
OTHERS = "en-GB,en-US en-GB,en en,de zh-Hans,zh-TW zh,zh-TW no,nn sr,sr-Latn ms,id x-a,x-b"


def test_a_language_includes_its_regions_and_other_codes_of_it():
    assert [pair for pair in INCLUDED.split() if not includes(*pair.split(","))] == []
    assert [pair for pair in OTHERS.split() if includes(*pair.split(","))] == []


def test_a_table_has_the_codes_that_may_be_typed():
    table = spellings_of(["eng_Latn", "zho_Hans", "zho_Hant", "pbt_Arab"])
    expected = {"en-us": "eng_Latn", "eng": "eng_Latn", "zh": "zho_Hans", "zh-tw": "zho_Hant"}
    expected |= {"zh-hant-hk": "zho_Hant", "ps": "pbt_Arab", "cmn": "zho_Hans"}
    assert expected.items() <= table.items() and not {"de", "yue", "pbu"} & {*table}


@pytest.mark.parametrize("named", [("de", "de"), ("xx", "de"), ("fr", "tlh"), ("de", "zho_Hang")])
def test_the_nearest_of_many_directions_is_found_in_few_comparisons(monkeypatch, named):
    compared = []

    class Counted(difflib.SequenceMatcher):
        def ratio(self):
            compared.append(self.a)
            return super().ratio()

    languages = MODELS["m2m100"]
    assert len(languages.directions) == 9_900
    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    for _ in range(127):  # as often as a server halves a failed batch of 64 texts
        with pytest.raises(InputError):
            languages.tokens_of(*named)
    assert len(compared) < 2_000
