// The book's pages by title, and by the code of a refusal. They are asked for once, when somebody searches.

let pages = [];
let loading = null;

/** Asks for them; a server without a book has none. */
export function loadTitles() {
  loading ??= fetch('/docs/index.json', { credentials: 'same-origin' }).then((answer) => answer.ok ? answer.json() : { data: [] }).then((index) => { pages = index.data; }).catch(() => { loading = null; });
  return loading;
}

/** Those that have every word of a text, as the palette lists them. */
export function searchTitles(text, hint = (page) => page.chapter) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = pages.filter((page) => words.every((word) => `${page.title} ${page.chapter}`.toLowerCase().includes(word)));
  return found.map((page) => ({ name: page.title, hint: hint(page), sign: 'book', run: () => location.assign(page.address) }));
}

/** The title of a page by its address, or the address. */
export const titleOf = (address) => pages.find((page) => page.address === address)?.title ?? address.replace(/^\/docs\//, '');

/** The address of the page about a refusal's code; null for what is no code. */
export const errorPagePath = (code) => /^[a-z][a-z0-9_]*$/.test(String(code ?? '')) ? `/docs/errors/${code}` : null;
