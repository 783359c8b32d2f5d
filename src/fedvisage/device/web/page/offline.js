// The service worker: it keeps the page's files, so that the page also opens without a network. With a network, files
// come from there. Files that need a key of the service, and its API, are never kept.

const CACHE = "fedvisage";

self.addEventListener("install", (event) => event.waitUntil(keep()));
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { method, headers } = event.request;
  if (method === "GET" && !headers.has("authorization")) event.respondWith(answer(event.request));
});

async function keep() {
  const cache = await caches.open(CACHE);
  const page = await fetch("page.json");
  const { offline } = await page.json();
  await cache.addAll(["./", ...offline]);
}

async function answer(request) {
  const cache = await caches.open(CACHE);
  let fresh;
  try {
    fresh = await fetch(request);
  } catch {
    return (await cache.match(request)) ?? Response.error();
  }
  if (fresh.ok && (await cache.match(request))) await cache.put(request, fresh.clone());
  return fresh;
}
