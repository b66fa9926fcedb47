// The book's pages, by title and by error code. Fetches the list once, for the first search.

let pages = [];
let loading = null;

/** Fetches the titles. A server without the book has none. */
export function loadTitles() {
  loading ??= fetch('/docs/index.json', { credentials: 'same-origin' })
    .then((answer) => (answer.ok ? answer.json() : { data: [] }))
    .then((index) => {
      pages = index.data;
    })
    .catch(() => {
      loading = null;
    });
  return loading;
}

/** Finds the pages whose title and chapter contain every word of a text. Returns entries of the palette. */
export function searchTitles(text, hint = (page) => page.chapter) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = pages.filter((page) =>
    words.every((word) => `${page.title} ${page.chapter}`.toLowerCase().includes(word)),
  );
  return found.map((page) => ({
    name: page.title,
    hint: hint(page),
    sign: 'book',
    run: () => location.assign(page.address),
  }));
}

/** The title of the page at an address, or the address if the page is unknown. */
export const titleOf = (address) =>
  pages.find((page) => page.address === address)?.title ?? address.replace(/^\/docs\//, '');

/** The address of the page about an error code. `null` if the value is not a code. */
export const errorPagePath = (code) =>
  /^[a-z][a-z0-9_]*$/.test(String(code ?? '')) ? `/docs/errors/${code}` : null;
