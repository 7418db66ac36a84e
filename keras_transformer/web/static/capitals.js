/** Sentences in capitals, which a model reads better in their usual case, as in `text/capitals.py`. */

const WORD = /\p{L}[\p{L}\p{M}]+/gu;
// Python finds fields and addresses, whose case stays. Here a sentence with such a sign stays as it is.
const OF_ITEMS = /[{}<>[\]%$#@/\\_]/;
const DOTTED = ["tr", "az"]; // Languages with a dotless i.

const localeOf = (language = "") => {
  const primary = language.split(/[-_]/)[0];
  return DOTTED.includes(primary) ? primary : "en"; // Greek would lose its accents.
};

/** Whether a sentence has two words or more, and all letters with a case are capitals. */
export function isInCapitals(text) {
  const words = text.match(WORD) ?? [];
  return words.length > 1 && /\p{Lu}/u.test(words.join("")) && !/\p{Ll}/u.test(text) && !OF_ITEMS.test(text);
}

/** A text in capitals as a sentence: with one capital, at its beginning. */
export function inUsualCase(text, language) {
  const lowered = text.toLocaleLowerCase(localeOf(language));
  const named = (language ?? "").split(/[-_]/)[0] === "en" ? lowered.replace(/(?<!\p{L})i(?!\p{L})/gu, "I") : lowered;
  return named.replace(/\p{L}/u, (letter) => letter.toLocaleUpperCase(localeOf(language)));
}

/** A text in capitals; ß becomes ẞ. */
export const inCapitals = (text, language) => text.replaceAll("ß", "ẞ").toLocaleUpperCase(localeOf(language));
