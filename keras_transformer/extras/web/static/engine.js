/** Translates with LiteRT, in the thread of its caller, which is `worker.js`. */
import { loadAndCompile, loadLiteRt, supportsFeature, Tensor } from "./litert/index.js";
import { inUsualCase, isInCapitals } from "./capitals.js";
import { hasLetters, segments, sentencesOf, withoutSpace } from "./sentences.js";
import { Shortlist } from "./shortlist.js";
import { SentencePiece } from "./tokenizer.js";

const EOS = 2;

export class Engine {
  /** @param {URL} base the directory @param {(loaded: number, total: number) => void} progress */
  static async load(base, progress) {
    const engine = new Engine();
    const about = JSON.parse(await text(new URL("export.json", base)));
    const runtime = (await supportsFeature("relaxedSimd")) ? "litert_wasm" : "litert_wasm_compat";
    engine.about = { ...about, runtime: ["js", "wasm"].map((end) => `litert/${runtime}_internal.${end}`) };
    for (const side of ["source", "target"]) {
      const name = about[`${side}_tokenizer`].replace(/model$/, "json");
      engine[side] = new SentencePiece(JSON.parse(await text(new URL(name, base))));
    }
    if (about.shortlist) {
      engine.shortlist = new Shortlist(await (await response(new URL("shortlist.npy", base))).arrayBuffer());
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

  /** Whether a text is short enough for the model, with a number of added tokens. */
  fits(text, added = 0) {
    return this.source.encode(text).length + added < this.about.source_lengths.at(-1);
  }

  /**
   * Ids that the model reads because of the languages of a text, in addition to its own.
   * @param {{source?: string, target?: string}} languages codes or names of `export.json`'s `language_table`
   * @returns {{sourcePrefix: number[], sourceSuffix: number[], targetPrefix: number[]}}
   */
  direction(languages = {}) {
    const { language_tokens: about = {}, language_table: table } = this.about;
    const isNamed = languages.source || languages.target;
    const idsOf = (place) => {
      const side = about[place];
      if (!side || (!isNamed && place !== "target_prefix")) return [];
      const spelling = languages[side];
      const row = table.names.indexOf(spelling?.trim().replaceAll("_", "-").toLowerCase());
      if (row >= 0) return [table[place][row]];
      const rule = `The ${side} language must be one of ${Object.keys(about.tokens).join(", ")}.`;
      throw new RangeError(`${rule} Received: ${spelling}.`);
    };
    const [sourcePrefix, sourceSuffix] = [idsOf("source_prefix"), idsOf("source_suffix")];
    return { sourcePrefix, sourceSuffix, targetPrefix: idsOf("target_prefix") };
  }

  /** The tag that a text begins with, with a space after it, or "", and the rest of the text. */
  splitTag(text) {
    const [start, tag, name] = text.match(/^\s*(<([a-z0-9][a-z0-9-]*)>|>>[^<>\s\u2581]+<<)\s*/) ?? [""];
    const isLanguage = (token) => this.source.has(token);
    const isTag = name ? this.about.tags?.includes(name) && !isLanguage(`>>${name}<<`) : tag && isLanguage(tag);
    return isTag ? [`${tag} `, text.slice(start.length)] : ["", text];
  }

  /** The tags that a text begins with: that of a language, and one after it. */
  splitTags(text) {
    const [language, rest] = this.splitTag(text);
    if (!language.startsWith(">>")) return [language, rest];
    const [tag, end] = this.splitTag(rest);
    return [language + tag, end];
  }

  /**
   * Splits a text into parts that fit, by the rules of the export: its sentences, or parts of a sentence.
   * Each part that the model reads gets the tags of the text, the others have their translation. A part
   * in `capitals` has the language in which its translation becomes one, too.
   * @returns {{before: string, source: string, after: string, text?: string, capitals?: string}[]}
   */
  split(text, languages) {
    const { sourcePrefix, sourceSuffix } = this.direction(languages);
    const added = sourcePrefix.length + sourceSuffix.length;
    const [tags, rest] = this.splitTags(text);
    const language = languages?.source || this.about.languages?.[0];
    const cut = (units, smaller) => {
      const whole = units.join("");
      if (this.fits(tags + whole.trim(), added)) return [whole];
      if (units.length === 1) return smaller(whole);
      const half = Math.ceil(units.length / 2);
      return [...cut(units.slice(0, half), smaller), ...cut(units.slice(half), smaller)];
    };
    const characters = (word) => cut(segments(word, "grapheme"), (character) => cut([...character], (point) => [point]));
    const words = (sentence) => cut(segments(sentence, "word", language), characters);
    const sentences = (whole) => sentencesOf(whole, language).flatMap((sentence) => cut([sentence], words));
    const pieces = this.about.split_sentences || !this.fits(tags + rest.trim(), added) ? sentences(rest) : [rest];
    const parts = withoutSpace(pieces).filter(({ before, source, after }) => before + source + after);
    return parts.map((part) => this.marked(part, tags, languages, added));
  }

  /** A part as the model reads it, with the tags of its text; or with the translation of one that it does not read. */
  marked(part, tags, languages, added) {
    const { source } = part;
    const copied = { ...part, text: source, words: [], ids: [], score: 0 };
    if (!source || (this.about.copy_symbols && !hasLetters(source))) return copied;
    if (!this.source.encode(source).length) return { ...copied, text: "" };
    if (!this.about.keep_case || !isInCapitals(source)) return { ...part, source: tags + source };
    const [from, to] = ["source", "target"].map((side, index) => languages?.[side] || this.about.languages?.[index]);
    const usual = tags + inUsualCase(source, from);
    // Letters that the vocabulary lacks as capitals are one unknown token, and several tokens in their usual case.
    return this.fits(usual, added) ? { ...part, source: usual, capitals: to ?? "" } : { ...part, source: tags + source };
  }

  /**
   * Translates texts that fit.
   * @param {string[]} texts @param {number} beamSize
   * @param {{source?: string, target?: string}[]} languages of each text
   * @returns {Promise<{source: string, text: string, words: string[], ids: number[], score: number}[]>}
   */
  async translate(texts, beamSize, languages = []) {
    const directions = texts.map((_, index) => this.direction(languages[index]));
    const sources = texts.map((text, index) => this.sourceIds(text, directions[index]));
    const search = beamSize === 1 ? "greedy" : "beam";
    const largestBatch = this.about.batch_sizes.at(-1);
    const order = [...texts.keys()].sort((a, b) => sources[a].length - sources[b].length);
    const results = [];
    for (let start = 0; start < order.length; start += largestBatch) {
      const indices = order.slice(start, start + largestBatch);
      const forced = indices.map((index) => directions[index].targetPrefix);
      const translations = await this.search(search, indices.map((index) => sources[index]), forced);
      translations.forEach(({ ids, score }, place) => {
        const [source, text] = [texts[indices[place]], this.target.decode(ids)];
        const part = { source, text, words: this.words(ids), ids, score, languages: languages[indices[place]] };
        results[indices[place]] = part;
      });
    }
    return results;
  }

  /**
   * Searches for the translations of a batch, the ids of its sources in rising order of length, with
   * the forced ids of each.
   */
  async search(name, batch, forced) {
    const rows = smallest(this.about.batch_sizes, batch.length);
    const columns = smallest(this.about.source_lengths, batch.at(-1).length);
    const shape = `${rows}x${columns}`;
    const inputs = { source_ids: [padded(batch, rows, columns), [rows, columns]] };
    if (this.shortlist) {
      const size = this.about.list_sizes[shape];
      const { ids, bias } = this.shortlist.of(batch[0], size); // Batches have one sentence.
      Object.assign(inputs, { candidates: [ids, [size]], candidate_bias: [bias, [1, size]] });
    }
    if (this.about.language_tokens?.target_prefix) inputs.forced_ids = [padded(forced, rows, 1), [rows]];
    const outputs = await this.run(`${name}_${shape}`, inputs);
    const length = this.about.max_target_length;
    return batch.map((_, row) => ({
      ids: [...outputs.ids.subarray(row * length, (row + 1) * length)].filter((id) => id),
      score: outputs.score[row],
    }));
  }

  words(ids) {
    const wordIds = ids.filter((id) => id !== EOS);
    const decode = (indices) => this.target.decode(indices.map((index) => wordIds[index]));
    return this.target.words(wordIds).map(decode);
  }

  /**
   * Computes the attention of each word of a translation to the words of its source.
   * @param {string} text @param {number[]} ids of its translation
   * @param {{source?: string, target?: string}} languages
   * @returns {Promise<{source: string[], target: string[], weights: number[][]}>} a row for each
   *   word of the translation; the rest of a row's sum to 1 is attention to the end of the source.
   */
  async align(text, ids, languages) {
    const direction = this.direction(languages);
    const sourceIds = this.sourceIds(text, direction);
    const [first, firstRow] = [direction.sourcePrefix.length, direction.targetPrefix.length];
    const [columns, steps] = this.about.align_shape;
    const { alignment } = await this.run("align", {
      source_ids: [padded([sourceIds], 1, columns), [1, columns]],
      target_ids: [padded([[...direction.targetPrefix, ...ids].slice(0, steps)], 1, steps), [1, steps]],
    });
    const textIds = sourceIds.slice(first, sourceIds.length - 1 - direction.sourceSuffix.length); // Without EOS.
    const target = this.target.words(ids.filter((id) => id !== EOS));
    const source = this.source.words(textIds);
    const weights = target.map((rows) =>
      source.map((indices) => {
        let sum = 0;
        for (const row of rows) {
          for (const column of indices) sum += alignment[(row + firstRow) * columns + column + first] ?? 0;
        }
        return sum / rows.length;
      }),
    );
    const words = source.map((indices) => this.source.decode(indices.map((index) => textIds[index])));
    return { source: words, target: this.words(ids), weights };
  }

  sourceIds(text, { sourcePrefix, sourceSuffix }) {
    const ids = this.source.encode(text);
    return text.trim() && ids.length ? [...sourcePrefix, ...ids, EOS, ...sourceSuffix] : [];
  }

  async run(name, inputs) {
    const tensors = {};
    for (const [key, [values, shape]] of Object.entries(inputs)) tensors[key] = new Tensor(values, shape);
    const outputs = await this.model.run(name, tensors);
    const arrays = {};
    for (const [key, tensor] of Object.entries(outputs)) arrays[key] = tensor.toTypedArray().slice();
    for (const tensor of [...Object.values(tensors), ...Object.values(outputs)]) tensor.delete();
    return arrays;
  }
}

const smallest = (sizes, least) => sizes.find((size) => size >= least);

function padded(rows, count, columns) {
  const values = new Int32Array(count * columns);
  rows.forEach((row, index) => values.set(row, index * columns));
  return values;
}

async function response(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return answer;
}

const text = async (url) => (await response(url)).text();

async function bytes(url, total, progress) {
  const content = new Uint8Array(total);
  let loaded = 0;
  const reader = (await response(url)).body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    content.set(part.value, loaded); // Fails if there are more bytes than were exported.
    progress((loaded += part.value.length), total);
  }
  if (loaded !== total) throw new Error(`${url}: ${loaded} bytes instead of ${total}`);
  return content;
}
