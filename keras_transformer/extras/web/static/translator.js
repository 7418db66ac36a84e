/**
 * Translates in the browser, in its own worker. No text leaves the machine.
 *
 *     import { load } from "./en-de/translator.js";
 *     const translator = await load();
 *     const [{ text }] = await translator.translate(["Two dogs play."], { beamSize: 1 });
 *
 * @typedef {object} Part A sentence, or a part of a long one, or a whole short text.
 * @property {string} source A sentence in capitals in its usual case, if the export reads it so.
 * @property {string} before White space before the first part.
 * @property {string} after White space after the source.
 * @property {string} text Its translation.
 * @property {string} space White space after the translation.
 * @property {string[]} words Words of the translation; none if it was copied, as numbers are.
 * @property {number[]} ids Token ids of the translation.
 * @property {number} score Log-probability divided by the length penalty.
 * @property {{source?: string, target?: string}} languages Its languages, if the options name them.
 *
 * @typedef {object} Translation
 * @property {string} text
 * @property {Part[]} parts
 *
 * @typedef {object} Options
 * @property {number} [beamSize] 1 for greedy search, or the beam size of the export, the default.
 * @property {string | string[]} [source] Code of the language of all texts, or of each text.
 * @property {string | string[]} [target] Code of the language of the translations, likewise.
 * @property {AbortSignal} [signal] Stops after the current batch.
 * @property {(done: Translation[], parts: number) => void} [onProgress] Called after each batch
 *   with the translations so far and the number of parts of all texts.
 */

import { inCapitals } from "./capitals.js";
import { spaceAfter } from "./sentences.js";

/**
 * @param {string | URL} [url] The exported directory, on this page's origin; by default that of this file.
 * @param {{onProgress?: (loaded: number, total: number) => void}} [options] Called with bytes of the model.
 * @returns {Promise<Translator>}
 */
export async function load(url = new URL("./", import.meta.url), { onProgress } = {}) {
  const translator = new Translator(new URL("worker.js", new URL(url, globalThis.location?.href)), onProgress);
  try {
    translator.about = await translator.ask("about");
  } catch (error) {
    translator.close();
    throw error;
  }
  return translator;
}

export class Translator {
  #worker;
  #waiting = new Map();
  #count = 0;

  constructor(script, onProgress) {
    /** The content of `export.json`, and `runtime`: the files of LiteRT that this browser uses. */
    this.about = null;
    this.#worker = new Worker(script);
    this.#worker.onmessage = ({ data: { id, result, error, loaded, total } }) => {
      if (id === undefined) return onProgress?.(loaded, total);
      const { resolve, reject } = this.#waiting.get(id);
      this.#waiting.delete(id);
      error === undefined ? resolve(result) : reject(new Error(error));
    };
    this.#worker.onerror = (event) => this.#fail(event.message ?? "The worker cannot be loaded.");
  }

  #fail(message) {
    for (const { reject } of this.#waiting.values()) reject(new Error(message));
    this.#waiting.clear();
  }

  /** Calls a method of the worker. */
  ask(method, ...values) {
    return new Promise((resolve, reject) => {
      const id = this.#count++;
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ id, method, values });
    });
  }

  /**
   * Translates texts of any length: each sentence by itself where the export says so, and else where a text
   * is too long for the model. White space stays.
   * @param {string[]} texts @param {Options} [options] @returns {Promise<Translation[]>}
   */
  async translate(texts, { beamSize = this.about.beam_size, source, target, signal, onProgress } = {}) {
    if (![1, this.about.beam_size].includes(beamSize)) {
      throw new RangeError(`beamSize must be 1 or ${this.about.beam_size}. Received: ${beamSize}.`);
    }
    const codeOf = (codes, index) => (Array.isArray(codes) ? codes[index] : codes);
    const languages = texts.map((_, index) => ({ source: codeOf(source, index), target: codeOf(target, index) }));
    const split = await this.ask("split", texts, languages);
    const parts = split.flatMap((textParts, place) =>
      textParts.map((part, index) => ({ ...part, place, isLast: index === textParts.length - 1 })),
    );
    const translated = parts.map((part) => (part.text === undefined ? undefined : spaced(part)));
    const joined = () => {
      const rows = texts.map(() => []);
      translated.forEach((part, index) => part && rows[parts[index].place].push(part));
      return rows.map((row) => ({ text: row.map((part) => part.before + part.text + part.space).join(""), parts: row }));
    };
    // One batch per call, so that the worker can answer other calls between two batches.
    const batchSize = this.about.batch_sizes.at(-1);
    const read = [...parts.keys()].filter((index) => !translated[index]);
    for (let start = 0; start < read.length; start += batchSize) {
      signal?.throwIfAborted();
      const indices = read.slice(start, start + batchSize);
      const [sources, named] = [indices.map((i) => parts[i].source), indices.map((i) => languages[parts[i].place])];
      const batch = await this.ask("translate", sources, beamSize, named);
      batch.forEach((part, place) => (translated[indices[place]] = spaced({ ...parts[indices[place]], ...part })));
      onProgress?.(joined(), parts.length);
    }
    signal?.throwIfAborted();
    return joined();
  }

  /**
   * Computes the attention of each word of a part's translation to the words of its source.
   * @param {Part} part
   * @returns {Promise<{source: string[], target: string[], weights: number[][]}>}
   */
  align({ source, ids, languages }) {
    return this.ask("align", source, ids, languages);
  }

  /** Ends the worker; calls that are not answered yet fail. */
  close() {
    this.#worker.terminate();
    this.#fail("The translator was closed.");
  }
}

/** A translated part with the white space after its translation, and with its capitals. */
function spaced({ place, isLast, capitals, ...part }) {
  const raised = capitals === undefined ? (text) => text : (text) => inCapitals(text, capitals);
  const [text, words] = [raised(part.text), part.words.map(raised)];
  return { ...part, text, words, space: isLast ? part.after : spaceAfter(part.after, text) };
}
