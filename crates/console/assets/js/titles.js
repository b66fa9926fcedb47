// The book's pages by title, and by the code of a refusal. They are asked for once, when somebody searches.

let known = [];
let asked = null;

/** Asks for them; a server without a book has none. */
export function titles() {
  asked ??= fetch('/docs/index.json', { credentials: 'same-origin' }).then((answer) => answer.ok ? answer.json() : { data: [] }).then((index) => { known = index.data; }).catch(() => { asked = null; });
  return asked;
}

/** Those that have every word of a text, as the palette lists them. */
export function matching(text, hint = (page) => page.chapter) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = known.filter((page) => words.every((word) => `${page.title} ${page.chapter}`.toLowerCase().includes(word)));
  return found.map((page) => ({ name: page.title, hint: hint(page), sign: 'book', run: () => location.assign(page.address) }));
}

/** The title of a page by its address, or the address. */
export const titleOf = (address) => known.find((page) => page.address === address)?.title ?? address.replace(/^\/docs\//, '');

/** The address of the page about a refusal's code; null for what is no code. */
export const pageOf = (code) => /^[a-z][a-z0-9_]*$/.test(String(code ?? '')) ? `/docs/errors/${code}` : null;
