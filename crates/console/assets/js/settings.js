// What the reader chose for this browser: colours, clock, and drafts that outlive a reload. Keeps nothing secret.

const PREFIX = 'headrace.';
const DEFAULTS = { theme: 'auto', clock: 'local' };

/** What was chosen for `name`. */
export function choice(name) {
  return load(`choice.${name}`) ?? DEFAULTS[name];
}

/** Chooses, and tells everybody who listens on `document` for `choice`. */
export function choose(name, value) {
  keep(`choice.${name}`, value);
  apply();
  document.dispatchEvent(new CustomEvent('choice', { detail: name }));
}

/** Puts the choices that the style sheet knows on the page. */
export function apply() {
  document.documentElement.dataset.theme = choice('theme');
}

/** What was kept under a name, or null. */
export function load(name) {
  try { return JSON.parse(localStorage.getItem(PREFIX + name)); } catch { return null; }
}

/** Keeps a value; `null` forgets it. A browser that keeps nothing is no failure. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch { /* private windows */ }
}
