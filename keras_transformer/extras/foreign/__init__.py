"""Parts of models of other programs: tensors, vocabularies, settings, shortlists.

Used by the folders of the programs (`marian`, `hugging_face`, `ctranslate2`, `argos`) and by
`importing`.
"""
