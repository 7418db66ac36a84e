// A classic worker, because LiteRT's loader calls `importScripts`. Answers `translator.js` in order.
const base = new URL("./", self.location.href);
const progress = (loaded, total) => postMessage({ loaded, total });
const ready = import("./engine.js").then(({ Engine }) => Engine.load(base, progress));
const methods = {
  about: (engine) => engine.about,
  split: (engine, texts) => texts.map((text) => engine.split(text)),
  translate: (engine, texts, beamSize) => engine.translate(texts, beamSize),
  align: (engine, source, ids) => engine.align(source, ids),
};

self.onmessage = async ({ data: { id, method, values } }) => {
  try {
    postMessage({ id, result: await methods[method](await ready, ...values) });
  } catch (error) {
    postMessage({ id, error: String(error?.message ?? error) });
  }
};
