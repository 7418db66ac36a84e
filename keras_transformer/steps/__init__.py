"""Steps of a text before and after its translation: tags, terms, placeholders, markup."""
