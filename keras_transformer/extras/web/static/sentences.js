/**
 * Sentences of a text, and the white space between their translations, by the rules of the Python
 * package (`text/sentences.py`). The ends of sentences are the browser's own, which knows no abbreviations.
 */

const INITIAL = /(?<![\p{L}\p{N}.])\p{L}\.$/u; // Few sentences end with one letter.
const NUMERAL = /^(?:x{0,3}(?:ix|iv|v?i{1,3}|v|x)|X{0,3}(?:IX|IV|V?I{1,3}|V|X))\.$/; // Of an item.
const ORDINAL = /(?<!\S)\d{1,3}\.$/;
const LANGUAGES_OF_ORDINALS = ["cs", "da", "de", "is", "lb", "sk"];
const QUOTATIONS = ["“”", "„“", "«»", "《》", "「」", "『』", "（）"];
const CLOSED = /["'\p{Pi}\p{Pf}\p{Pe}]$/u;
const EXCLAIMED = /[!?]\s*["'\p{Pi}\p{Pf}\p{Pe}]*$/u;
const SMALL = /^["'\p{Pi}\p{Pf}\p{Ps}\p{Pd}\s]*\p{Ll}/u;
const SAID = /^[とっを\p{scx=Hangul}]/u; // Particles and endings after a quotation.
const LINE_BREAK = /[\n\r\v\f\x85\u2028\u2029]/;
// White space before the first column belongs to it; a line break alone ends none.
const COLUMNS = /\s*[^]*?(?:(?:\t|\s{3})\s*|$)/g;
const LETTERS = /\p{L}/gu;
const UNSPACED = /[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}]/u;

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
  const columns = text.match(COLUMNS);
  return columns.filter(Boolean).flatMap((column) => sentencesIn(column, language));
}

function sentencesIn(text, language) {
  const sentences = [];
  let [start, position] = [0, 0];
  for (const segment of segments(text, "sentence", language)) {
    position += segment.length;
    const end = position + text.slice(position).match(/^[\p{Pe}\p{Pf}]*\s*/u)[0].length;
    const sentence = text.slice(start, end);
    if (!sentence.trim() || goesOn(sentence, text.slice(end), language?.split(/[-_]/)[0])) continue;
    sentences.push(sentence);
    start = end;
  }
  return start < text.length ? [...sentences, text.slice(start)] : sentences;
}

/** Whether what looks like a sentence is not its end. */
function goesOn(sentence, rest, language) {
  const text = sentence.trim();
  const space = sentence.slice(sentence.trimEnd().length);
  if (LINE_BREAK.test(space)) return false;
  const isQuotation = ([opening, closing]) => text.lastIndexOf(opening) > text.lastIndexOf(closing) && rest.includes(closing);
  if (QUOTATIONS.some(isQuotation)) return true;
  // “好的。”他说。
  if (!space) return CLOSED.test(text) && (SAID.test(rest) || (language === "zh" && /^[“「]/.test(text) && /^\p{L}/u.test(rest)));
  if (EXCLAIMED.test(text)) return SMALL.test(rest) && (CLOSED.test(text) || /^\p{Pd}/u.test(rest));
  const isOrdinal = LANGUAGES_OF_ORDINALS.includes(language) && ORDINAL.test(text);
  return isOrdinal || INITIAL.test(text) || NUMERAL.test(text);
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
