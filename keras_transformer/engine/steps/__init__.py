"""Steps of a text before and after its translation: tags, terms; the extra `markup` has one."""
