/** A SentencePiece model in JavaScript, from its `tokenizer.json`. */
import { PrecompiledNormalizer, Tokenizer } from "./tokenizers.js";

const UNK = 3;
const SPACE = "\u2581";

/**
 * The model's own rules of normalization: at each place the longest that fits. The library has
 * NFKC in their place, which is close and not equal.
 */
class Rules {
  /** @param {string} charsmap base64: the size of a double-array trie, the trie, what it points to */
  constructor(charsmap) {
    const bytes = Uint8Array.from(atob(charsmap), (character) => character.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.buffer.slice(4, 4 + size));
    this.texts = bytes.subarray(4 + size);
  }

  /** @param {string} text */
  normalize(text) {
    const given = new TextEncoder().encode(text);
    const found = [];
    for (let place = 0; place < given.length; ) {
      const [length, start] = this.longest(given, place);
      if (length) {
        for (let i = start; this.texts[i]; i++) found.push(this.texts[i]);
        place += length;
      } else {
        do found.push(given[place++]);
        while ((given[place] & 0xc0) === 0x80); // The rest of a character.
      }
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(found));
  }

  longest(given, place) {
    const { units } = this;
    const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let best = [0, 0];
    let node = offset(units[0]);
    for (let i = place; i < given.length; i++) {
      node ^= given[i];
      const unit = units[node];
      if (unit === undefined || (unit & 0x800000ff) >>> 0 !== given[i]) break;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) best = [i + 1 - place, units[node] & 0x7fffffff];
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

  /** @param {string} text @returns {number[]} ids, without an end */
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

  /** @param {number[]} ids special ones are left out @returns {string} */
  decode(ids) {
    const kept = ids.filter((id) => id >= UNK);
    while (kept.length && this.piece(kept[0]) === SPACE) kept.shift();
    if (!kept.length) return "";
    const text = this.library.decode(kept, { clean_up_tokenization_spaces: false });
    return kept[0] === UNK ? " " + text : text; // The library takes its space away.
  }

  /** @param {number} id @returns {string} */
  piece(id) {
    return this.library.id_to_token(id);
  }

  /**
   * Places of the tokens of each word; of each token where all are one word, or no words are told
   * apart.
   * @param {number[]} ids @returns {number[][]}
   */
  words(ids) {
    const words = [];
    ids.forEach((id, place) => {
      if (!words.length || this.piece(id).startsWith(SPACE)) words.push([]);
      words.at(-1).push(place);
    });
    return words.length > 1 ? words : ids.map((_, place) => [place]);
  }
}
