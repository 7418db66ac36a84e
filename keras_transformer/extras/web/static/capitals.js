/** Sentences in capitals, which a model reads better in their usual case, as in `text/capitals.py`. */

const WORD = /\p{L}[\p{L}\p{M}]+/gu;
// Fields, addresses and placeholders, whose case stays: the usual ones of those that Python finds. A sentence with
// another sign of them stays as it is.
const HOST = "[a-zA-Z0-9-]+(?:\\.[a-zA-Z0-9-]+)+";
const ITEM = new RegExp(
  `(${[
    "\\{[\\p{L}\\p{N}_.:-]*\\}",
    "(?<!\\d\\s)%(?:\\d\\$)?[sd](?![\\p{L}\\p{N}])",
    "<ph_\\d+>",
    "(?<![\\p{L}\\p{N}])(?:[hH][tT]{2}[pP][sS]?://|[wW]{3}\\.)[a-zA-Z0-9./?=&#%_~+-]+(?=[\\s.,!?]|$)",
    `(?<![\\p{L}\\p{N}.+-])[a-zA-Z0-9.+-]+@${HOST}(?=[\\s.,!?]|$)`,
  ].join("|")})`,
  "u",
);
const OF_ITEMS = /[{}<>[\]%$#@/\\_]|www\./i;
const DOTTED = ["tr", "az"]; // Languages with a dotless i.

const localeOf = (language = "") => {
  const primary = language.split(/[-_]/)[0];
  return DOTTED.includes(primary) ? primary : "en"; // Greek would lose its accents.
};

/** A text with its items, and with what a function makes of the texts between them. */
const outsideItems = (text, change) =>
  text
    .split(ITEM)
    .map((part, index) => (index % 2 ? part : change(part)))
    .join("");

/**
 * Whether a text is a sentence in capitals: all letters are capitals, none is of a script without case, and there
 * are two words or more, one of at least six letters. Rows of acronyms have none.
 */
export function isInCapitals(text) {
  const parts = text.split(ITEM).filter((_, index) => index % 2 === 0);
  const words = parts.join(" ").match(WORD) ?? [];
  const rest = parts.join("");
  if (words.length < 2 || !words.some((word) => [...word].length >= 6)) return false;
  return /\p{Lu}/u.test(rest) && !/\p{Lowercase}|\p{Lo}/u.test(rest) && !OF_ITEMS.test(rest);
}

/** A text in capitals as a sentence: with one capital, at its beginning. */
export function inUsualCase(text, language) {
  const isEnglish = (language ?? "").split(/[-_]/)[0] === "en";
  let isFirst = true;
  return outsideItems(text, (part) => {
    const lowered = part.toLocaleLowerCase(localeOf(language));
    const named = isEnglish ? lowered.replace(/(?<![\p{L}\p{N}_])i(?![\p{L}\p{N}_])/gu, "I") : lowered;
    if (!isFirst || !/\p{L}/u.test(named)) return named;
    isFirst = false;
    return named.replace(/\p{L}/u, (letter) => letter.toLocaleUpperCase(localeOf(language)));
  });
}

/** A text in capitals; ß becomes ẞ, and items stay. */
export const inCapitals = (text, language) =>
  outsideItems(text, (part) => part.replaceAll("ß", "ẞ").toLocaleUpperCase(localeOf(language)));
