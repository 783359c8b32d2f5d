// The service worker: it keeps the page's files, so that the page also opens without a network. With a network, files
// come from there. Files that need a key of the service, and its API, are never kept.

// The files of one state of the page are in a cache of their own: page.json states the digest of all their contents.
const PREFIX = `fedvisage ${new URL("./", self.location).pathname} `; // other pages of this host have other caches

self.addEventListener("install", (event) => event.waitUntil(fetch("page.json", { cache: "no-cache" }).then(keep)));
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { method, headers } = event.request;
  if (method === "GET" && !headers.has("authorization")) event.respondWith(answer(event));
});

/** Keep the files that a page.json lists, unless they are kept already, and forget those of earlier states. */
async function keep(page) {
  const { offline, contents } = await page.json();
  const name = PREFIX + contents;
  if (await caches.has(name)) return;
  try {
    const cache = await caches.open(name);
    await cache.addAll(["./", ...offline].map((path) => new Request(path, { cache: "no-cache" })));
  } catch (error) {
    await caches.delete(name);
    throw error;
  }
  for (const earlier of await kept()) if (earlier !== name) await caches.delete(earlier);
}

async function kept() {
  return (await caches.keys()).filter((name) => name.startsWith(PREFIX));
}

async function answer(event) {
  try {
    const fresh = await fetch(event.request);
    if (fresh.ok && event.request.url === new URL("page.json", self.location).href) event.waitUntil(keep(fresh.clone()));
    return fresh;
  } catch {
    for (const name of await kept()) {
      const file = await (await caches.open(name)).match(event.request);
      if (file) return file;
    }
    return Response.error();
  }
}
