// Stores the files of this directory, so that the page works without a network. The export writes two
// constants above this line: VERSION, and FILES with the SHA-256 of each file.
const FOLDER = new URL("./", self.location.href).pathname;
const NAME = `translator ${FOLDER} `;
const MANIFEST = "export.json";
const TIMEOUT_MS = 3000; // For a network that is connected but does not answer.
const POLICY =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; " +
  "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'";

self.addEventListener("install", (event) => event.waitUntil(install()));

// A browser activates it after the last page of the old version was closed, so a page never mixes versions.
self.addEventListener("activate", (event) => event.waitUntil(forget((name) => name !== NAME + VERSION)));

// The page sends the files of the LiteRT build that it runs.
self.addEventListener("message", (event) => {
  event.waitUntil(
    keep(event.data).then(
      () => event.source.postMessage({ offline: true }),
      (error) => event.source.postMessage({ offline: false, error: String(error) }),
    ),
  );
});

// Other paths of this origin are answered as if there were no service worker.
self.addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== self.location.origin || !pathname.startsWith(FOLDER)) return;
  const name = pathname.slice(FOLDER.length) || "index.html";
  if (name === MANIFEST || Object.hasOwn(FILES, name)) event.respondWith(answer(event.request, name));
});

async function install() {
  const isBuild = (name) => name.startsWith("litert/litert_");
  const names = Object.keys(FILES);
  // Only the LiteRT build that the previous version stored.
  const builds = await Promise.all(names.filter(isBuild).map(async (name) => ((await caches.match(name)) ? [name] : [])));
  await keep([MANIFEST, ...names.filter((name) => !isBuild(name)), ...builds.flat()]);
}

async function keep(names) {
  const cache = await caches.open(NAME + VERSION);
  const missing = await Promise.all(names.map(async (name) => ((await cache.match(name)) ? [] : [name])));
  await Promise.all(missing.flat().map(async (name) => cache.put(name, await fetched(name))));
}

/** Fetches a file of this version: during a deployment the directory has files of two versions. */
async function fetched(name) {
  // A server that compares only dates may confirm an old copy. Then it is asked without the cache.
  for (const cache of ["no-cache", "reload"]) {
    const response = await fetch(name, { cache });
    if (response.ok && (await isOfThisVersion(name, await response.clone().arrayBuffer()))) return response;
  }
  throw new Error(`${name}: expected the file of version ${VERSION}.`);
}

async function isOfThisVersion(name, content) {
  if (name === MANIFEST) {
    const { files } = JSON.parse(new TextDecoder().decode(content));
    return Object.entries(FILES).every(([file, digest]) => files[file]?.sha256 === digest);
  }
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === FILES[name];
}

async function answer(request, name) {
  if (request.mode === "navigate" && (await isGone())) {
    await forget(() => true);
    await self.registration.unregister();
    return fetch(request.url, { cache: "reload", redirect: "manual" }); // Without the cache.
  }
  await keep([name]);
  const stored = await (await caches.open(NAME + VERSION)).match(name);
  // The page's own policy does not apply to the worker.
  const headers = new Headers(stored.headers);
  headers.set("Content-Security-Policy", POLICY);
  return new Response(stored.body, { status: stored.status, statusText: stored.statusText, headers });
}

/** Whether this address now serves something else; false without a network. */
async function isGone() {
  const response = await fetch(MANIFEST, { cache: "no-cache", signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(() => null);
  if (!response?.ok) return [404, 410].includes(response?.status);
  const { format } = await response.json().catch(() => ({}));
  return format !== "keras_transformer.web";
}

async function forget(isOther) {
  const names = (await caches.keys()).filter((name) => name.startsWith(NAME) && isOther(name));
  await Promise.all(names.map((name) => caches.delete(name)));
}
