// Keeps the folder's files, so that the page works without a network. VERSION and FILES stand above.
const NAME = `translator ${new URL("./", self.location.href).pathname} `;
const POLICY =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; " +
  "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'";

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(keep(FILES));
});

self.addEventListener("activate", (event) => {
  const others = async () => {
    const names = await caches.keys();
    await Promise.all(names.filter((name) => name.startsWith(NAME) && name !== NAME + VERSION).map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(others());
});

// The page says which of LiteRT's builds it runs.
self.addEventListener("message", (event) => {
  event.waitUntil(
    keep(event.data).then(
      () => event.source.postMessage({ offline: true }),
      (error) => event.source.postMessage({ offline: false, error: String(error) }),
    ),
  );
});

self.addEventListener("fetch", (event) => {
  event.respondWith(answer(event.request));
});

async function keep(files) {
  const cache = await caches.open(NAME + VERSION);
  const missing = await Promise.all(files.map(async (file) => ((await cache.match(file)) ? [] : [file])));
  await cache.addAll(missing.flat().map((file) => new Request(file, { cache: "no-cache" })));
}

async function answer(request) {
  if (new URL(request.url).origin !== self.location.origin) return Response.error();
  const cache = await caches.open(NAME + VERSION);
  const found = (await cache.match(request, { ignoreSearch: true })) ?? (await fetch(request));
  // Also for the worker, which the page's own policy does not bind.
  const headers = new Headers(found.headers);
  headers.set("Content-Security-Policy", POLICY);
  return new Response(found.body, { status: found.status, statusText: found.statusText, headers });
}
