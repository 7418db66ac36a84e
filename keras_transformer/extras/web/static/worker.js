// A classic worker, because LiteRT's loader calls `importScripts`. Answers `translator.js` in order.
const base = new URL("./", self.location.href);
const progress = (loaded, total) => postMessage({ loaded, total });
const ready = import("./engine.js").then(({ Engine }) => Engine.load(base, progress));
const methods = {
  about: (engine) => engine.about,
  split: (engine, texts, languages) => texts.map((text, index) => engine.split(text, languages[index])),
  translate: (engine, texts, beamSize, languages) => engine.translate(texts, beamSize, languages),
  align: (engine, source, ids, languages) => engine.align(source, ids, languages),
};

self.onmessage = async ({ data: { id, method, values } }) => {
  try {
    postMessage({ id, result: await methods[method](await ready, ...values) });
  } catch (error) {
    postMessage({ id, error: String(error?.message ?? error) });
  }
};
