// Keeps the folder's files, so that the page works without a network. VERSION and FILES stand above:
// the SHA-256 of each.
const FOLDER = new URL("./", self.location.href).pathname;
const NAME = `translator ${FOLDER} `;
const MANIFEST = "export.json";
const PATIENCE_MS = 3000; // A network that is there, but gives nothing.
const POLICY =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; " +
  "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'";

self.addEventListener("install", (event) => event.waitUntil(install()));

// A browser does this once no page of the version before is open: each page ends with what it began.
self.addEventListener("activate", (event) => event.waitUntil(forget((name) => name !== NAME + VERSION)));

// The page says which of LiteRT's builds it runs.
self.addEventListener("message", (event) => {
  event.waitUntil(
    keep(event.data).then(
      () => event.source.postMessage({ offline: true }),
      (error) => event.source.postMessage({ offline: false, error: String(error) }),
    ),
  );
});

// Whatever else lies on this origin is answered as if there were no service worker.
self.addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== self.location.origin || !pathname.startsWith(FOLDER)) return;
  const name = pathname.slice(FOLDER.length) || "index.html";
  if (name === MANIFEST || Object.hasOwn(FILES, name)) event.respondWith(answer(event.request, name));
});

async function install() {
  const isBuild = (name) => name.startsWith("litert/litert_");
  const names = Object.keys(FILES);
  // Of LiteRT's builds the one that the version before has.
  const known = await Promise.all(names.filter(isBuild).map(async (name) => ((await caches.match(name)) ? [name] : [])));
  await keep([MANIFEST, ...names.filter((name) => !isBuild(name)), ...known.flat()]);
}

async function keep(names) {
  const cache = await caches.open(NAME + VERSION);
  const missing = await Promise.all(names.map(async (name) => ((await cache.match(name)) ? [] : [name])));
  await Promise.all(missing.flat().map(async (name) => cache.put(name, await fetched(name))));
}

/** A file, if it is this version's: while a folder is deployed, it holds files of two. */
async function fetched(name) {
  // A server that goes by times may hold the browser's old copy for new: then it is asked without.
  for (const cache of ["no-cache", "reload"]) {
    const found = await fetch(name, { cache });
    if (found.ok && (await isOwn(name, await found.clone().arrayBuffer()))) return found;
  }
  throw new Error(`${name}: not of version ${VERSION}.`);
}

async function isOwn(name, content) {
  if (name === MANIFEST) {
    const { files } = JSON.parse(new TextDecoder().decode(content));
    return Object.entries(FILES).every(([each, digest]) => files[each]?.sha256 === digest);
  }
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === FILES[name];
}

async function answer(request, name) {
  if (request.mode === "navigate" && (await isGone())) {
    await forget(() => true);
    await self.registration.unregister();
    return fetch(request.url, { cache: "reload", redirect: "manual" }); // Not what the browser kept of this page.
  }
  await keep([name]);
  const found = await (await caches.open(NAME + VERSION)).match(name);
  // Also for the worker, which the page's own policy does not bind.
  const headers = new Headers(found.headers);
  headers.set("Content-Security-Policy", POLICY);
  return new Response(found.body, { status: found.status, statusText: found.statusText, headers });
}

/** Whether something else is served here now; where nothing answers, it is not. */
async function isGone() {
  const found = await fetch(MANIFEST, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) }).catch(() => null);
  if (!found?.ok) return [404, 410].includes(found?.status);
  const { format } = await found.json().catch(() => ({}));
  return format !== "keras_transformer.web";
}

async function forget(isOther) {
  const names = (await caches.keys()).filter((name) => name.startsWith(NAME) && isOther(name));
  await Promise.all(names.map((name) => caches.delete(name)));
}
