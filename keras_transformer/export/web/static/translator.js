/**
 * Translates in the browser, in a worker of its own. Nothing is sent anywhere.
 *
 *     import { load } from "./en-de/translator.js";
 *     const translator = await load();
 *     const [{ text }] = await translator.translate(["Two dogs play."], { beamSize: 1 });
 *
 * @typedef {object} Part A sentence, or a whole text that is short.
 * @property {string} source
 * @property {string} text Its translation.
 * @property {string[]} words Those of the translation.
 * @property {number[]} ids Those of the translation's tokens.
 * @property {number} score Log-probability over the length penalty.
 *
 * @typedef {object} Translation
 * @property {string} text
 * @property {Part[]} parts
 *
 * @typedef {object} Options
 * @property {number} [beamSize] 1 for greedy search, or the export's, the default.
 * @property {AbortSignal} [signal] Gives up between two batches.
 * @property {(done: Translation[], parts: number) => void} [onProgress] What there is after each
 *   batch of the first texts, and the parts of all texts.
 */

/**
 * @param {string | URL} [url] The exported folder, on this page's origin; by default this file's.
 * @param {{onProgress?: (loaded: number, total: number) => void}} [options] Bytes of the model.
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
   * Translates texts of any length: one that the model does not take whole by its sentences.
   * @param {string[]} texts @param {Options} [options] @returns {Promise<Translation[]>}
   */
  async translate(texts, { beamSize = this.about.beam_size, signal, onProgress } = {}) {
    if (![1, this.about.beam_size].includes(beamSize)) {
      throw new RangeError(`beamSize must be 1 or ${this.about.beam_size}. Received: ${beamSize}.`);
    }
    const split = await this.ask("split", texts);
    const parts = split.flat();
    const owners = split.flatMap((each, place) => each.map(() => place));
    const found = texts.map(() => []);
    const joined = () => found.map((each) => ({ text: each.map((part) => part.text).join(" "), parts: each }));
    // A batch for each call, so that between two of them others are heard.
    const most = this.about.batch_sizes.at(-1);
    for (let start = 0; start < parts.length; start += most) {
      signal?.throwIfAborted();
      const batch = await this.ask("translate", parts.slice(start, start + most), beamSize);
      batch.forEach((part, place) => found[owners[start + place]].push(part));
      onProgress?.(joined(), parts.length);
    }
    signal?.throwIfAborted();
    return joined();
  }

  /**
   * What each word of a part's translation attended to in its source.
   * @param {Part} part
   * @returns {Promise<{source: string[], target: string[], weights: number[][]}>}
   */
  align({ source, ids }) {
    return this.ask("align", source, ids);
  }

  /** Ends the worker; what is still asked for fails. */
  close() {
    this.#worker.terminate();
    this.#fail("The translator was closed.");
  }
}
