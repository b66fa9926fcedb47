// The reader's choices for this browser, such as colours and clock, and other values that survive a reload.
// Stores no secret.

const PREFIX = 'headrace.';
const DEFAULTS = { theme: 'auto', clock: 'local' };

/** The chosen value of `name`, or its default. */
export function choice(name) {
  return load(`choice.${name}`) ?? DEFAULTS[name];
}

/** Stores a choice and sends the event `choice` to `document`. */
export function choose(name, value) {
  keep(`choice.${name}`, value);
  apply();
  document.dispatchEvent(new CustomEvent('choice', { detail: name }));
}

/** Sets the attribute from which the style sheet reads the chosen colours. */
export function apply() {
  document.documentElement.dataset.theme = choice('theme');
}

/** The stored value of a name, or `null`. */
export function load(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** Stores a value, or removes it if it is `null`. A browser that refuses to store is not an error. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    /* Private windows may refuse to store. */
  }
}
