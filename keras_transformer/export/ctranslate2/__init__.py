"""Format `ctranslate2`: weights and vocabularies for CTranslate2."""
