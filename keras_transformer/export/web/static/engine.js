/** Translating by LiteRT, in the thread that calls it: `worker.js` does. */
import { loadAndCompile, loadLiteRt, supportsFeature, Tensor } from "./litert/index.js";
import { SentencePiece } from "./tokenizer.js";

const EOS = 2;

export class Engine {
  /** @param {URL} base the folder @param {(loaded: number, total: number) => void} progress */
  static async load(base, progress) {
    const engine = new Engine();
    const about = JSON.parse(await text(new URL("export.json", base)));
    const runtime = (await supportsFeature("relaxedSimd")) ? "litert_wasm" : "litert_wasm_compat";
    engine.about = { ...about, runtime: ["js", "wasm"].map((end) => `litert/${runtime}_internal.${end}`) };
    for (const side of ["source", "target"]) {
      const name = about[`${side}_tokenizer`].replace(/model$/, "json");
      engine[side] = new SentencePiece(JSON.parse(await text(new URL(name, base))));
    }
    const name = "model.tflite";
    const content = bytes(new URL(name, base), about.files[name].bytes, progress);
    self.Module = {
      locateFile: (file) => new URL(`litert/${file}`, base).href,
      printErr: (line) => /^(INFO|WARNING|VERBOSE)/.test(line) || console.error(line),
    };
    await loadLiteRt(new URL(engine.about.runtime[0], base).href);
    engine.model = await loadAndCompile(await content, { accelerator: "wasm" });
    return engine;
  }

  /** Whether the model takes a text whole. */
  fits(text) {
    return this.source.encode(text).length < this.about.source_lengths.at(-1);
  }

  /** Parts of a text that fit: the whole, or its sentences, or parts of them. */
  split(text) {
    if (!text.trim()) return [];
    if (this.fits(text)) return [text];
    const cut = (units, smaller) => {
      const whole = units.join("");
      if (this.fits(whole)) return [whole];
      if (units.length === 1) return smaller(whole);
      const half = Math.ceil(units.length / 2);
      return [...cut(units.slice(0, half), smaller), ...cut(units.slice(half), smaller)];
    };
    const characters = (word) => cut(segments(word, "grapheme"), (one) => cut([...one], (each) => [each]));
    const words = (sentence) => cut(segments(sentence, "word"), characters);
    return segments(text, "sentence").flatMap((sentence) => cut([sentence], words)).filter((part) => part.trim());
  }

  /**
   * Translates texts that fit.
   * @param {string[]} texts @param {number} beamSize
   * @returns {Promise<{source: string, text: string, words: string[], ids: number[], score: number}[]>}
   */
  async translate(texts, beamSize) {
    const sources = texts.map((each) => this.sourceIds(each));
    const search = beamSize === 1 ? "greedy" : "beam";
    const most = this.about.batch_sizes.at(-1);
    const order = [...texts.keys()].sort((a, b) => sources[a].length - sources[b].length);
    const results = [];
    for (let start = 0; start < order.length; start += most) {
      const places = order.slice(start, start + most);
      const chosen = places.map((place) => sources[place]);
      const rows = smallest(this.about.batch_sizes, chosen.length);
      const columns = smallest(this.about.source_lengths, chosen.at(-1).length);
      const given = { source_ids: [padded(chosen, rows, columns), [rows, columns]] };
      const found = await this.run(`${search}_${rows}x${columns}`, given);
      places.forEach((place, row) => {
        const longest = this.about.max_target_length;
        const ids = [...found.ids.subarray(row * longest, (row + 1) * longest)].filter((id) => id);
        const score = found.score[row];
        const text = this.target.decode(ids);
        results[place] = { source: texts[place], text, words: this.words(ids), ids, score };
      });
    }
    return results;
  }

  words(ids) {
    const kept = ids.filter((id) => id !== EOS);
    return this.target.words(kept).map((places) => this.target.decode(places.map((place) => kept[place])));
  }

  /**
   * What each word of a translation attended to.
   * @param {string} text @param {number[]} ids of its translation
   * @returns {Promise<{source: string[], target: string[], weights: number[][]}>} a row for each
   *   word of the translation; a row's sum is what went to words, and not to the end.
   */
  async align(text, ids) {
    const source = this.sourceIds(text);
    const columns = smallest(this.about.source_lengths, source.length);
    const steps = this.about.align_lengths[columns];
    const found = await this.run(`align_1x${columns}`, {
      source_ids: [padded([source], 1, columns), [1, columns]],
      target_ids: [padded([ids.slice(0, steps)], 1, steps), [1, steps]],
    });
    const own = source.slice(0, -1);
    const target = this.target.words(ids.filter((id) => id !== EOS));
    const groups = this.source.words(own);
    const weights = target.map((rows) =>
      groups.map((group) => {
        let sum = 0;
        for (const row of rows) for (const column of group) sum += found.alignment[row * columns + column] ?? 0;
        return sum / rows.length;
      }),
    );
    const words = groups.map((group) => this.source.decode(group.map((place) => own[place])));
    return { source: words, target: this.words(ids), weights };
  }

  sourceIds(text) {
    const ids = this.source.encode(text);
    return text.trim() && ids.length ? [...ids, EOS] : [];
  }

  async run(name, inputs) {
    const tensors = {};
    for (const [key, [values, shape]] of Object.entries(inputs)) tensors[key] = new Tensor(values, shape);
    const outputs = await this.model.run(name, tensors);
    const found = {};
    for (const [key, tensor] of Object.entries(outputs)) found[key] = tensor.toTypedArray().slice();
    for (const tensor of [...Object.values(tensors), ...Object.values(outputs)]) tensor.delete();
    return found;
  }
}

const smallest = (sizes, wanted) => sizes.find((size) => size >= wanted);

function padded(rows, count, columns) {
  const values = new Int32Array(count * columns);
  rows.forEach((row, place) => values.set(row, place * columns));
  return values;
}

function segments(text, granularity) {
  return Array.from(new Intl.Segmenter(undefined, { granularity }).segment(text), (each) => each.segment);
}

async function response(url) {
  const found = await fetch(url);
  if (!found.ok) throw new Error(`${url}: ${found.status} ${found.statusText}`);
  return found;
}

const text = async (url) => (await response(url)).text();

async function bytes(url, total, progress) {
  const content = new Uint8Array(total);
  let loaded = 0;
  const reader = (await response(url)).body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    content.set(part.value, loaded); // Fails where there are more than was exported.
    progress((loaded += part.value.length), total);
  }
  if (loaded !== total) throw new Error(`${url}: ${loaded} bytes instead of ${total}`);
  return content;
}
