/** A SentencePiece model in JavaScript, from its `tokenizer.json`. */
import { PrecompiledNormalizer, Tokenizer } from "./tokenizers.js";

const UNK = 3;
const SPACE = "\u2581";

/**
 * The model's own normalization: at each index the longest matching rule. The library applies NFKC
 * instead, which is similar but not equal.
 */
class Rules {
  /** @param {string} charsmap base64: the size of a double-array trie, the trie, the replacements */
  constructor(charsmap) {
    const bytes = Uint8Array.from(atob(charsmap), (character) => character.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.buffer.slice(4, 4 + size));
    this.texts = bytes.subarray(4 + size);
  }

  /** @param {string} text */
  normalize(text) {
    const bytes = new TextEncoder().encode(text);
    const normalized = [];
    for (let index = 0; index < bytes.length; ) {
      const [length, start] = this.longest(bytes, index);
      if (length) {
        for (let i = start; this.texts[i]; i++) normalized.push(this.texts[i]);
        index += length;
      } else {
        do normalized.push(bytes[index++]);
        while ((bytes[index] & 0xc0) === 0x80); // The rest of a character.
      }
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(normalized));
  }

  /** Length in bytes of the longest rule at an index, 0 for none, and where its replacement begins. */
  longest(bytes, index) {
    const { units } = this;
    const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let best = [0, 0];
    let node = offset(units[0]);
    for (let i = index; i < bytes.length; i++) {
      node ^= bytes[i];
      const unit = units[node];
      if (unit === undefined || (unit & 0x800000ff) >>> 0 !== bytes[i]) break;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) best = [i + 1 - index, units[node] & 0x7fffffff];
    }
    return best;
  }
}

export class SentencePiece {
  /** @param {object} content of `tokenizer.json` */
  constructor(content) {
    this.library = new Tokenizer(content, {});
    this.fallback = content.model.byte_fallback;
    const steps = this.library.normalizer.normalizers;
    this.library.normalizer.normalizers = steps.map((step) =>
      step instanceof PrecompiledNormalizer ? new Rules(step.charsmap) : step,
    );
  }

  /** @param {string} text @returns {number[]} ids, without EOS */
  encode(text) {
    return this.library.tokenize(text).flatMap((token) => {
      const id = this.library.token_to_id(token);
      if (id !== undefined) return [id];
      if (!this.fallback) return [UNK];
      return Array.from(new TextEncoder().encode(token), (byte) =>
        this.library.token_to_id(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
      );
    });
  }

  /** @param {number[]} ids special ids are skipped @returns {string} */
  decode(ids) {
    const textIds = ids.filter((id) => id >= UNK);
    while (textIds.length && this.piece(textIds[0]) === SPACE) textIds.shift();
    if (!textIds.length) return "";
    const text = this.library.decode(textIds, { clean_up_tokenization_spaces: false });
    return textIds[0] === UNK ? " " + text : text; // The library removes its space.
  }

  /** Whether a word is one piece. @param {string} word @returns {boolean} */
  has(word) {
    return this.library.token_to_id(SPACE + word) !== undefined;
  }

  /** @param {number} id @returns {string} */
  piece(id) {
    return this.library.id_to_token(id);
  }

  /**
   * Places of the tokens of each word. If the text has only one word, or no spaces, each token counts as
   * a word.
   * @param {number[]} ids @returns {number[][]}
   */
  words(ids) {
    const words = [];
    ids.forEach((id, index) => {
      if (!words.length || this.piece(id).startsWith(SPACE)) words.push([]);
      words.at(-1).push(index);
    });
    return words.length > 1 ? words : ids.map((_, index) => [index]);
  }
}
