// Creates elements. No other file does. Texts become text nodes, styles are set by CSSOM and handlers are
// listeners, so that no value can become markup. Knows nothing of Headrace.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Creates an element. Properties: `class`, `style` (an object, set by CSSOM), `data` (an object), `on` (an
 * object of listeners), `prop` (an object of DOM properties). Any other name is an attribute. `null`,
 * `undefined` and `false` are left out, and `true` is an empty attribute.
 * @param {string} tag
 * @param {object|null} [props]
 * @param {...any} children nodes, texts, arrays of them; `null` and `false` are left out
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Creates an SVG element. Takes the same arguments as {@link h}. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    set(node, name, value);
  }
  add(node, children);
  return node;
}

function set(node, name, value) {
  if (name === 'class')
    node.setAttribute('class', Array.isArray(value) ? value.filter(Boolean).join(' ') : value);
  else if (name === 'style')
    for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
  else if (name === 'data') Object.assign(node.dataset, value);
  else if (name === 'on') for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
  else if (name === 'prop') Object.assign(node, value);
  else if (name === 'href') node.setAttribute('href', safe(value));
  else if (name.startsWith('on')) throw new Error('listeners are added, never written as attributes');
  else node.setAttribute(name, value === true ? '' : String(value));
}

/**
 * Allows links within the console, to this server and to the web. Any other link, such as a script, becomes
 * `#`.
 */
function safe(address) {
  return /^(#|\/|https?:\/\/)/.test(String(address)) ? String(address) : '#';
}

export function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Replaces the children of a node. */
export function put(node, ...children) {
  node.replaceChildren();
  return add(node, ...children);
}

/** Draws a line icon of 16 px. Without a label, screen readers ignore it. */
export function icon(name, label) {
  const attributes = {
    viewBox: '0 0 16 16',
    width: 16,
    height: 16,
    class: 'icon',
    fill: 'none',
    stroke: 'currentColor',
    'stroke-width': 1.5,
    'stroke-linecap': 'round',
    'stroke-linejoin': 'round',
  };
  const spoken = label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': 'true' };
  return s(
    'svg',
    { ...attributes, ...spoken },
    (ICONS[name] ?? ICONS.dot).map((d) => s('path', { d })),
  );
}

const ICONS = {
  now: ['M1.5 9h3l2-5.5 3 9 2-3.5h3'],
  play: ['M2.5 3.5h11v7.5H8L5 13.5V11H2.5z'],
  requests: ['M2.5 4h6', 'M5 8h7', 'M8 12h5.5'],
  cache: ['M2.5 5.5 8 2.5l5.5 3L8 8.5z', 'M2.5 8.5 8 11.5l5.5-3', 'M2.5 11.2 8 14l5.5-2.8'],
  money: [
    'M8 1.8v12.4',
    'M11 4.4c-.6-.8-1.7-1.2-3-1.2-1.8 0-3 .9-3 2.3 0 3.3 6.3 1.6 6.3 5 0 1.5-1.3 2.4-3.3 2.4-1.5 0-2.7-.5-3.3-1.4',
  ],
  keys: ['M9.8 6.2a3.2 3.2 0 1 1-6.4 0 3.2 3.2 0 0 1 6.4 0z', 'M9 8.500l4.5 4.5', 'M11.3 10.800l1.5-1.5'],
  users: [
    'M10.3 5.300a2.3 2.3 0 1 1-4.6 0 2.3 2.3 0 0 1 4.6 0z',
    'M3.2 13.200c.5-2.4 2.4-3.800 4.8-3.800s4.3 1.4 4.8 3.800',
  ],
  tiers: ['M2.5 12.500h11', 'M4.5 9.200h7', 'M6.5 5.900h3'],
  gateways: ['M2.5 3h4v3h-4z', 'M9.5 3h4v3h-4z', 'M6 10.500h4v3H6z', 'M4.5 6v2.200h7V6', 'M8 8.200v2.300'],
  invoices: ['M4 2.500h8v11l-2-1.200-2 1.200-2-1.200-2 1.200z', 'M6 5.500h4', 'M6 8.200h4'],
  budgets: ['M2.5 12.500a5.500 5.500 0 0 1 11 0', 'M8 12.500l2.800-3.400', 'M2.5 12.500h11'],
  moderation: [
    'M8 1.800 13 3.800v4c0 3-2 5.200-5 6.400-3-1.200-5-3.400-5-6.400v-4z',
    'M5.8 7.800l1.700 1.700 2.800-3.200',
  ],
  models: ['M2.5 2.800h11v4h-11z', 'M2.5 9.200h11v4h-11z', 'M4.8 4.800h.01', 'M4.8 11.200h.01'],
  audit: ['M4 2h6l2.5 2.500V14H4z', 'M6 7h4.5', 'M6 9.500h4.5', 'M6 12h2.5'],
  settings: ['M2.5 4.500h5', 'M11 4.500h2.5', 'M2.5 11.500H5', 'M8.5 11.500h5', 'M9.25 3v3', 'M6.75 10v3'],
  search: ['M11 6.800a4.2 4.2 0 1 1-8.4 0 4.2 4.2 0 0 1 8.4 0z', 'M9.9 9.9 13.5 13.5'],
  lens: ['M2.500 4.500h4v7h-4z', 'M8.500 4.500h2v7h-2z', 'M12.500 4.500h1v7h-1z'],
  menu: ['M2.5 4.500h11', 'M2.5 8h11', 'M2.5 11.500h11'],
  close: ['M4 4l8 8', 'M12 4l-8 8'],
  sun: [
    'M10.8 8a2.8 2.8 0 1 1-5.6 0 2.8 2.8 0 0 1 5.6 0z',
    'M8 1.500v1.3',
    'M8 13.200v1.3',
    'M1.5 8h1.3',
    'M13.2 8h1.3',
    'M3.4 3.400l.9.9',
    'M11.7 11.700l.9.9',
    'M12.6 3.400l-.9.9',
    'M4.3 11.700l-.9.9',
  ],
  moon: ['M13.3 9.600A5.6 5.6 0 0 1 6.4 2.700a5.6 5.6 0 1 0 6.9 6.900z'],
  clock: ['M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z', 'M8 4.500V8l2.4 1.5'],
  out: ['M6.5 2.500h-4v11h4', 'M10 5l3 3-3 3', 'M13 8H6'],
  copy: ['M5.5 5.500h8v8h-8z', 'M10.5 5.500v-3h-8v8h3'],
  check: ['M3 8.500l3.3 3.300L13 5'],
  warn: ['M8 2.2 14.2 13H1.800z', 'M8 6.300v3.2', 'M8 11.400h.01'],
  right: ['M6 3.5 10.5 8 6 12.5'],
  left: ['M10 3.5 5.5 8l4.5 4.5'],
  plus: ['M8 3v10', 'M3 8h10'],
  stop: ['M4 4h8v8H4z'],
  redo: ['M13 8a5 5 0 1 1-1.5-3.5', 'M13 2.500v2.800h-2.8'],
  send: ['M2.5 8 13.5 2.8 10.5 13.2 7.8 8.800z'],
  split: ['M2.5 3h11v10h-11z', 'M8 3v10'],
  contrast: ['M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z', 'M8 2v12', 'M8 5l4-1.5', 'M8 8h6', 'M8 11l4 1.5'],
  book: [
    'M8 4.200C6.500 3.200 4.500 2.900 2.500 3v9.500c2-.1 4 .2 5.500 1.200 1.500-1 3.500-1.300 5.500-1.200V3c-2-.1-4 .2-5.500 1.200z',
    'M8 4.200v9.5',
  ],
  dot: ['M8 8h.01'],
};
