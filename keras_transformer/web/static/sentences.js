/**
 * Sentences of a text, and the white space between their translations, by the rules of the Python
 * package (`text/sentences.py`). The ends of sentences are the browser's own.
 */

const ITEM_NUMBER = /^[([]?\d{1,3}[.)\]]+$/;
const ABBREVIATION = /(?<![\p{L}\p{N}])\p{L}\.$/u; // Few sentences end with one letter.
const LINE_BREAK = /[\n\r\v\f\x85\u2028\u2029]/;
const LETTERS = /\p{L}/gu;
const UNSPACED =
  /[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}\p{scx=Tibetan}]/u;

/** Segments of a text: sentences, words or graphemes, which make up the text. */
export function segments(text, granularity, language) {
  const segmenter = new Intl.Segmenter(locale(language), { granularity });
  return Array.from(segmenter.segment(text), ({ segment }) => segment);
}

function locale(language = "en") {
  try {
    return Intl.getCanonicalLocales(language.replaceAll("_", "-"))[0];
  } catch {
    return "en"; // No code of BCP 47.
  }
}

/**
 * Sentences of a text, each with the white space after it; white space at the beginning of the text
 * belongs to the first.
 * @param {string} text @param {string} [language] @returns {string[]}
 */
export function sentencesOf(text, language) {
  const sentences = [];
  let open = "";
  for (const segment of segments(text, "sentence", language)) {
    const start = open || !sentences.length ? 0 : segment.length - segment.trimStart().length;
    if (start) sentences.push(sentences.pop() + segment.slice(0, start));
    open += segment.slice(start);
    if (!open.trim() || goesOn(open)) continue;
    sentences.push(open);
    open = "";
  }
  return open ? [...sentences, open] : sentences;
}

/** Whether what looks like a sentence is the number of a list's item, or ends with an abbreviation. */
function goesOn(sentence) {
  const text = sentence.trim();
  const space = sentence.slice(sentence.trimEnd().length);
  return !LINE_BREAK.test(space) && (ITEM_NUMBER.test(text) || ABBREVIATION.test(text));
}

/** Whether a text has letters, of words and not of placeholders. */
export const hasLetters = (text) => /\p{L}/u.test(text.replace(/<ph_\d+>/g, ""));

/**
 * White space after the translation of a sentence: one space or none becomes what the script of the
 * translation has.
 * @param {string} space white space after the sentence @param {string} translation
 */
export function spaceAfter(space, translation) {
  const letters = translation.match(LETTERS) ?? [];
  if (!["", " "].includes(space) || !letters.length) return space;
  const unspaced = letters.filter((letter) => UNSPACED.test(letter));
  return 2 * unspaced.length > letters.length ? "" : " ";
}

/**
 * Texts without their outer white space, which they have as `before` and `after`. A blank text
 * belongs to the text before it.
 * @param {string[]} texts @returns {{before: string, source: string, after: string}[]}
 */
export function withoutSpace(texts) {
  const rows = [];
  for (const text of texts) {
    const source = text.trim();
    const start = text.indexOf(source);
    const row = { before: text.slice(0, start), source, after: text.slice(start + source.length) };
    if (!rows.length) rows.push(row);
    else if (!source) rows.at(-1).after += text;
    else {
      rows.at(-1).after += row.before;
      rows.push({ ...row, before: "" });
    }
  }
  return rows;
}
