// The page that translates with `translator.js`.
import { load } from "./translator.js";

const PAUSE_MS = 300;
const REDRAW_MS = 250; // The longer the translation, the longer it takes to draw it.
const at = (id) => document.getElementById(id);
const [source, output, search, copy, state, loading, from, to] =
  ["source", "translation", "search", "copy", "status", "loading", "from", "to"].map(at);
let translator, timer, running;
let shown = []; // The translation of each line.

const megabytes = (count) => `${(count / 1e6).toFixed(1)} MB`;

function say(text, isError = false) {
  state.textContent = text;
  state.classList.toggle("error", isError);
}

function element(name, text, fields = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...fields });
}

/** Shows the translation of each line as buttons, one per word. */
function show(lines) {
  shown = lines;
  const paragraphs = lines.map(({ parts }) => {
    const line = element("p", "", { dir: "auto" });
    for (const part of parts) {
      line.append(part.before);
      let rest = part.text; // Keeps the spaces of the translation between its words.
      part.words.forEach((word, number) => {
        const start = rest.indexOf(word);
        if (start > 0) line.append(rest.slice(0, start));
        if (start >= 0) rest = rest.slice(start + word.length);
        const button = element("button", word, { className: "word", type: "button" });
        button.setAttribute("aria-pressed", "false");
        button.onclick = () => attend(button, part, number);
        line.append(button);
      });
      line.append(rest, part.space);
    }
    return line;
  });
  output.replaceChildren(...paragraphs);
  copy.disabled = !lines.some(({ text }) => text);
}

function close() {
  at("attention").hidden = true;
  for (const word of output.querySelectorAll("[aria-pressed=true]")) word.setAttribute("aria-pressed", "false");
}

/** Shows the attention of a word of the translation to the words of the source. */
async function attend(button, part, number) {
  const again = button.getAttribute("aria-pressed") === "true";
  close();
  if (again) return;
  button.setAttribute("aria-pressed", "true");
  try {
    const { source: words, target, weights } = await translator.align(part);
    if (button.getAttribute("aria-pressed") !== "true") return; // Another word was clicked.
    at("word").textContent = target[number];
    const marks = words.flatMap((word, index) => {
      const weight = weights[number][index];
      const mark = element("mark", word, { className: `w${Math.min(4, Math.ceil(weight * 6 - 0.3))}` });
      if (weight >= 0.05) mark.append(element("b", `${Math.round(100 * weight)}%`));
      return [mark, " "];
    });
    at("words").replaceChildren(...marks);
    at("attention").hidden = false;
  } catch (error) {
    say(error.message, true);
  }
}

async function translate() {
  clearTimeout(timer);
  running?.abort();
  const { signal } = (running = new AbortController());
  const lines = source.value.split(/\r\n|[\n\r\u2028\u2029]/);
  const beamSize = Number(search.value);
  close();
  output.classList.add("old");
  if (source.value.trim()) say("Translating…");
  const start = performance.now();
  let drawn = start;
  try {
    const translations = await translator.translate(lines, {
      beamSize,
      source: from.value || undefined,
      target: to.value || undefined,
      signal,
      onProgress: (done, count) => {
        if (signal.aborted || performance.now() - drawn < REDRAW_MS) return;
        show(done);
        drawn = performance.now();
        say(`Translating… ${done.reduce((sum, { parts }) => sum + parts.length, 0)} of ${count}`);
      },
    });
    if (signal.aborted) return;
    show(translations);
    say(source.value.trim() ? `${Math.round(performance.now() - start)} ms` : "");
    output.classList.remove("old");
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

source.addEventListener("input", () => {
  clearTimeout(timer);
  running?.abort();
  if (translator) timer = setTimeout(translate, PAUSE_MS);
});
for (const choice of [search, from, to]) choice.addEventListener("change", () => translator && translate());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && translator) translate();
});
copy.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(shown.map(({ text }) => text).join("\n"));
    say("Copied.");
  } catch (error) {
    say(`Not copied: ${error.message}`, true);
  }
});

/** Offers the languages of a model whose tokens name them. */
function offerLanguages({ language_tokens: languages }) {
  const names = new Intl.DisplayNames(undefined, { type: "language" });
  for (const [side, choice] of [["source", from], ["target", to]]) {
    const places = ["source_prefix", "source_suffix", "target_prefix"];
    if (!languages || !places.some((place) => languages[place] === side)) continue;
    if (languages.is_optional) choice.append(element("option", "as the text says", { value: "" }));
    for (const code of Object.keys(languages.tokens)) choice.append(element("option", nameOf(names, code), { value: code }));
    choice.parentElement.hidden = false;
  }
  if (from.value && to.value === from.value) to.selectedIndex = Math.min(1, to.length - 1);
}

function nameOf(names, code) {
  try {
    return names.of(code);
  } catch {
    return code; // No code of BCP 47.
  }
}

async function workOffline({ runtime }) {
  if (!navigator.serviceWorker) return; // Browsers have it only for https and for localhost.
  navigator.serviceWorker.addEventListener("message", ({ data }) => {
    document.documentElement.dataset.offline = data.offline;
    if (data.offline) at("size").textContent += " It works offline.";
  });
  await navigator.serviceWorker.register("service-worker.js");
  const { active } = await navigator.serviceWorker.ready;
  active.postMessage(runtime);
}

async function begin() {
  try {
    translator = await load(undefined, { onProgress: (loaded, total) => (loading.value = loaded / total) });
    const { about } = translator;
    const names = ["model.tflite", "tokenizers.js", ...about.runtime];
    if (about.shortlist) names.push("shortlist.npy");
    for (const side of ["source", "target"]) names.push(about[`${side}_tokenizer`].replace(/model$/, "json"));
    const total = [...new Set(names)].reduce((sum, name) => sum + about.files[name].bytes, 0);
    // The folder of an export is its name, and the heading already says "Translator".
    at("name").textContent = about.name?.toLowerCase() === "translator" ? "" : about.name;
    at("size").textContent = `Model ${megabytes(about.files["model.tflite"].bytes)}, in all ${megabytes(total)}.`;
    if (about.beam_size > 1) search.append(element("option", `beam ${about.beam_size}`, { value: about.beam_size }));
    search.append(element("option", "greedy", { value: 1 }));
    offerLanguages(about);
    loading.hidden = true;
    say("Ready.");
    if (source.value.trim()) translate();
    workOffline(about).catch(console.warn); // It translates without them, too.
  } catch (error) {
    loading.hidden = true;
    say(`This page cannot translate: ${error.message}`, true);
  }
}

begin();
