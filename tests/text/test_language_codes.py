"""Codes that people type: each stands for the nearest language that a model has."""

import difflib

import pytest

from keras_transformer.errors import InputError
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

NLLB = (
    "ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab "
    "arb_Arab ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn "
    "bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt "
    "bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn "
    "dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn "
    "ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn "
    "gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn "
    "hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn "
    "kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn "
    "kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo "
    "lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn "
    "luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn "
    "mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva "
    "nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn "
    "por_Latn prs_Arab pbt_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng "
    "scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn "
    "spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml "
    "tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn "
    "tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab "
    "uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans "
    "zho_Hant zul_Latn"
).split()
M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
).split()
OPUS = ["cmn", "cmn_Hans", "cmn_Hant"]
MODELS = {
    "nllb": Languages(codes_of(NLLB), source_prefix="source", target_prefix="target"),
    "m2m100": Languages(
        codes_of(f"__{code}__" for code in M2M100), source_prefix="source", target_prefix="target"
    ),
    "opus": languages_of_tags({code: f">>{code}<<" for code in OPUS}),
}
# A source that no test translates to.
SOURCES = {"nllb": "vie_Latn", "m2m100": "vi"}


def token_of(model, spelling):
    """The model's own name of the language that a code chooses as a target."""
    tokens = MODELS[model].tokens_of(SOURCES.get(model), spelling)
    return "".join(tokens.target_prefix or tokens.source_prefix).strip("_><")


CHOSEN = {
    "nllb": {
        # Macro-languages stand for their usual member, or for the only one.
        "pes_Arab": "fa fa-IR pes per fas fa-Arab",
        "prs_Arab": "fa-AF prs",
        "pbt_Arab": "ps ps-AF pus",
        "nob_Latn": "no nb nb-NO no-NO nor nob no-bok",
        "nno_Latn": "nn nn-NO nno",
        "aka_Latn": "ak aka",
        "twi_Latn": "tw twi tw-GH",
        "quy_Latn": "qu qu-PE que",
        "fuv_Latn": "ff ff-NG ful",
        "arb_Arab": "ar ar-EG ar-MA ar-001 ara arb ar-arb",
        "ary_Arab": "ary ar-ary",
        "arz_Arab": "arz",
        "kmr_Latn": "ku ku-TR kur",
        "ckb_Arab": "ckb ckb-IQ",
        "azj_Latn": "az az-Latn az-AZ",
        "azb_Arab": "azb",
        "khk_Cyrl": "mn mn-MN mon",
        "zsm_Latn": "ms ms-BN ms-MY may zsm",
        "swh_Latn": "sw sw-KE swa",
        "est_Latn": "et ekk et-EE",
        "lvs_Latn": "lv lv-LV lav",
        "ltg_Latn": "ltg",
        "npi_Deva": "ne ne-NP nep",
        "ory_Orya": "or or-IN ori",
        "uzn_Latn": "uz uz-Latn-UZ uzb",
        "als_Latn": "sq sq-XK alb",
        "ydd_Hebr": "yi ji yid",
        "grn_Latn": "gn gug gn-PY",
        "plt_Latn": "mg mlg",
        "ayr_Latn": "ay aym",
        "gaz_Latn": "om orm",
        "knc_Latn": "kr kr-Latn",
        "dik_Latn": "din",
        # The usual script, or the only one of a model.
        "zho_Hans": "zh zho chi cmn zh-CN zh-SG zh-Hans zh-Hans-CN zh-cmn-Hans zh_CN",
        "zho_Hant": "zh-TW zh-HK zh-MO zh-Hant zh-Hant-HK zh_TW",
        "yue_Hant": "yue yue-HK zh-yue",
        "kas_Arab": "ks ks-Arab",
        "kas_Deva": "ks-Deva",
        "ace_Latn": "ace",
        "ace_Arab": "ace-Arab",
        "bjn_Latn": "bjn",
        "bjn_Arab": "bjn-Arab",
        "crh_Latn": "crh crh-Latn",
        "tzm_Tfng": "tzm",
        "sat_Beng": "sat",
        "dzo_Tibt": "dz dz-BT",
        "bod_Tibt": "bo bo-CN tib",
        "srp_Cyrl": "sr sr-Cyrl sr-RS scc",
        "pan_Guru": "pa pa-IN pa-Guru",
        # Regions and variants are dropped.
        "por_Latn": "pt-BR pt-PT pt_br",
        "eng_Latn": "en-US en-IN eng en-UK EN-us",
        "spa_Latn": "es-419 es-MX",
        "fra_Latn": "fr-CA",
        "deu_Latn": "de-AT ger de-1996 de-DE-u-co-phonebk",
        "cat_Latn": "ca-valencia",
        # Earlier codes.
        "ind_Latn": "in id",
        "heb_Hebr": "iw",
        "jav_Latn": "jw",
        "ron_Latn": "mo",
        "hrv_Latn": "hr scr",
        "bos_Latn": "bs",
        "tgl_Latn": "tl fil tgl",
        "bam_Latn": "bm",
    },
    "m2m100": {
        "no": "nb nb-NO no",
        "ns": "nso ns nso-ZA",
        "pt": "pt-BR pt-PT",
        "zh": "zh zh-CN zh-Hans cmn zho_Hans",
        "en": "en-GB eng_Latn",
        "tl": "fil tl tgl_Latn",
        "fa": "pes_Arab fa-IR",
        "he": "iw heb",
        "sr": "sr-Cyrl srp_Cyrl",
        "ms": "zsm_Latn ms-BN",
        "yi": "ydd ji",
        "hr": "hr hrv_Latn",
    },
    "opus": {
        "cmn": "zh zho chi cmn",
        "cmn_Hans": "zh-Hans zh-CN zh-SG zho_Hans cmn-Hans",
        "cmn_Hant": "zh-TW zh-HK zh-Hant zho_Hant zh-Hant-HK",
    },
}
TYPED = [
    (model, spelling, token)
    for model, spellings in CHOSEN.items()
    for token, listed in spellings.items()
    for spelling in listed.split()
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


REFUSED = [
    # Another script.
    ("nllb", "sr-Latn", "srp_Cyrl"),
    ("nllb", "sr-ME", "srp_Cyrl"),
    ("nllb", "pa-Arab", "pan_Guru"),
    ("nllb", "pa-PK", "pan_Guru"),
    ("nllb", "uz-Cyrl", "uzn_Latn"),
    ("nllb", "mn-Mong", "khk_Cyrl"),
    ("nllb", "yue-Hans", "yue_Hant"),
    ("nllb", "az-Arab", "azb_Arab"),
    ("nllb", "ku-Arab", "ckb_Arab"),
    ("nllb", "ff-Adlm", "fuv_Latn"),
    ("m2m100", "zh-Hant", "zh"),
    ("m2m100", "zh-TW", "zh"),
    ("m2m100", "zho_Hant", "zh"),
    ("m2m100", "sr-Latn", "sr"),
    ("m2m100", "pa-Arab", "pa"),
    # Another language, also of the same macro-language.
    ("nllb", "tlh", ""),
    ("nllb", "sh", "srp_Cyrl"),
    ("nllb", "wuu", "yue_Hant"),
    ("nllb", "zh-min-nan", "yue_Hant"),
    ("nllb", "quz", "quy_Latn"),
    ("nllb", "zh-CHT", ""),
    ("m2m100", "tlh", "th"),
    ("m2m100", "sh", "sr"),
    ("m2m100", "nn", "no"),
    ("m2m100", "yue", "zh"),
    ("m2m100", "ary", "ar"),
    ("m2m100", "ckb", ""),
    ("opus", "yue", "cmn"),
    ("opus", "ja", ""),
    # No codes.
    ("nllb", "German", ""),
    ("nllb", "und", ""),
    ("nllb", "", ""),
    ("nllb", "x-klingon", ""),
    ("nllb", "en" * 100_000, ""),
]


@pytest.mark.parametrize(("model", "spelling", "nearest"), REFUSED)
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
    assert [code for code in [*NLLB, *M2M100, *OPUS, *private] if not is_known(code)] == []
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

    languages = MODELS["nllb"]
    assert len(languages.directions) == 40_602
    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    for _ in range(127):  # as often as a server halves a failed batch of 64 texts
        with pytest.raises(InputError):
            languages.tokens_of(*named)
    assert len(compared) < 2_000
