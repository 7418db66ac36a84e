/** Target tokens that each source token is likely to become; see the package's `text/shortlist.py`. */

const HIDDEN = -1e9;

export class Shortlist {
  /** @param {ArrayBuffer} content of an array of integers in NumPy's format, version 1. */
  constructor(content) {
    const start = 10 + new DataView(content).getUint16(8, true);
    const header = new TextDecoder("latin1").decode(content.slice(10, start));
    const values = header.includes("<u2") ? new Uint16Array(content, start) : new Uint32Array(content, start);
    const [numFrequent, numSources] = values;
    const counts = values.subarray(2, 2 + numSources);
    this.frequent = values.subarray(2 + numSources, 2 + numSources + numFrequent);
    this.candidates = values.subarray(2 + numSources + numFrequent);
    this.ends = new Uint32Array(numSources + 1); // Of the candidates of the ids before.
    for (let id = 0; id < numSources; id++) this.ends[id + 1] = this.ends[id] + counts[id];
  }

  /**
   * Returns the candidates of a sentence in rising order, padded with 0 to `size`.
   * @param {number[]} sourceIds @param {number} size
   * @returns {{ids: Int32Array, bias: Float32Array}} the bias hides the padding.
   */
  of(sourceIds, size) {
    const known = sourceIds.filter((id) => id + 1 < this.ends.length);
    const rows = known.map((id) => this.candidates.subarray(this.ends[id], this.ends[id + 1]));
    const union = new Set([this.frequent, ...rows].flatMap((row) => [...row]));
    const ids = new Int32Array(size);
    ids.set(Int32Array.from(union).sort());
    return { ids, bias: new Float32Array(size).fill(HIDDEN, union.size) };
  }
}
