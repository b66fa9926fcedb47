// Shows the page that the address names. The address is the fragment behind `#`, so the server serves a
// single page. A page is a module with `show(root, route)`, whose work ends when `route.signal` aborts. If
// the address changes within a page that has `update(route)`, the router calls that function and not `show`.

import { add, h, put } from './dom.js';
import { may, role } from './session.js';
import { empty, failure, skeleton } from './ui/parts.js';

/**
 * Pages in the order of the side bar. `needs` is the route that the operator must be allowed to call, `key`
 * the key after `g`.
 */
export const PAGES = [
  {
    path: 'now',
    name: 'Now',
    icon: 'now',
    needs: 'GET /now',
    key: 'n',
    group: 'Observe',
    load: () => import('./pages/now.js'),
  },
  {
    path: 'requests',
    name: 'Requests',
    icon: 'requests',
    needs: 'GET /requests',
    key: 'r',
    group: 'Observe',
    load: () => import('./pages/requests.js'),
  },
  {
    path: 'cache',
    name: 'Cache',
    icon: 'cache',
    needs: 'GET /cache',
    key: 'c',
    group: 'Observe',
    load: () => import('./pages/cache.js'),
  },
  {
    path: 'moderation',
    name: 'Moderation',
    icon: 'moderation',
    needs: 'GET /requests',
    key: 'o',
    group: 'Observe',
    load: () => import('./pages/moderation.js'),
  },
  {
    path: 'money',
    name: 'Money',
    icon: 'money',
    needs: 'GET /usage|GET /credit',
    key: 'm',
    group: 'Observe',
    load: () => import('./pages/money.js'),
  },
  {
    path: 'gateways',
    name: 'Gateways',
    icon: 'gateways',
    needs: 'GET /gateways',
    key: 'w',
    group: 'Observe',
    load: () => import('./pages/gateways.js'),
  },
  {
    path: 'playground',
    name: 'Playground',
    icon: 'play',
    needs: 'POST /playground/chat/completions',
    key: 'p',
    group: 'Try',
    load: () => import('./pages/playground.js'),
  },
  {
    path: 'prompt',
    name: 'Prompt tools',
    icon: 'lens',
    needs: 'POST /models/{name}/render',
    key: 't',
    group: 'Try',
    load: () => import('./pages/prompt.js'),
  },
  {
    path: 'keys',
    name: 'Keys and limits',
    icon: 'keys',
    needs: 'GET /keys',
    key: 'k',
    group: 'Manage',
    load: () => import('./pages/keys.js'),
  },
  {
    path: 'users',
    name: 'Users',
    icon: 'users',
    needs: 'GET /users|GET /service-accounts',
    key: 'e',
    group: 'Manage',
    load: () => import('./pages/users.js'),
  },
  {
    path: 'tiers',
    name: 'Tiers',
    icon: 'tiers',
    needs: 'GET /tiers',
    key: 'i',
    group: 'Manage',
    load: () => import('./pages/tiers.js'),
  },
  {
    path: 'budgets',
    name: 'Budgets',
    icon: 'budgets',
    needs: 'GET /budgets',
    key: 'b',
    group: 'Manage',
    load: () => import('./pages/budgets.js'),
  },
  {
    path: 'invoices',
    name: 'Invoices',
    icon: 'invoices',
    needs: 'GET /invoices',
    key: 'v',
    group: 'Manage',
    load: () => import('./pages/invoices.js'),
  },
  {
    path: 'models',
    name: 'Models and upstreams',
    icon: 'models',
    needs: 'GET /models',
    key: 'u',
    group: 'Manage',
    load: () => import('./pages/models.js'),
  },
  {
    path: 'audit',
    name: 'Audit',
    icon: 'audit',
    needs: 'GET /audit',
    key: 'a',
    group: 'Manage',
    load: () => import('./pages/audit.js'),
  },
  {
    path: 'settings',
    name: 'Settings',
    icon: 'settings',
    needs: 'GET /settings',
    key: 's',
    group: 'Manage',
    load: () => import('./pages/settings.js'),
  },
];

let container = null;
let mark = () => {};
let shown = null;
let ending = new AbortController();

/**
 * Starts to show pages in `main`, and calls `marked` with each page that is shown. If `main` is `null`,
 * stops.
 */
export function start(main, marked) {
  ending.abort();
  shown = null;
  container = main;
  mark = marked ?? (() => {});
  if (main) showAddress();
}

/** Navigates to an address such as `requests/ID?model=x`. */
export function go(address) {
  location.hash = '#/' + address;
}

/** Replaces the address without a new entry in the browser's history. */
export function rewrite(address) {
  history.replaceState(null, '', '#/' + address);
}

/** Parses the address into the page, the rest of the path, and the query. */
export function route() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, ...rest] = path
    .split('/')
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { page: page ?? '', rest, query: new URLSearchParams(query) };
}

window.addEventListener(
  'hashchange',
  () => container && !location.hash.startsWith('#sign-in=') && showAddress(),
);

async function showAddress() {
  const address = route();
  const entry =
    PAGES.find((page) => page.path === address.page) ?? PAGES.find((page) => may(page.needs)) ?? PAGES[0];
  mark(entry);
  if (shown?.path === entry.path && shown.module.update)
    return shown.module.update({ ...address, signal: ending.signal });
  ending.abort();
  ending = new AbortController();
  const { signal } = ending;
  const root = h('div', { class: 'page' });
  put(container, root);
  if (!may(entry.needs)) {
    shown = null;
    return put(
      root,
      empty(
        'This page is not for your role.',
        `The role ${role()} may not see ${entry.name}. Ask an owner for an operator key with another role.`,
      ),
    );
  }
  const wait = setTimeout(() => root.childNodes.length || add(root, skeleton(6)), 120);
  try {
    const module = await entry.load();
    if (signal.aborted) return;
    put(root);
    shown = { path: entry.path, module };
    document.title = `${entry.name} · Headrace`;
    await module.show(root, { ...address, signal });
  } catch (error) {
    if (signal.aborted || error.name === 'AbortError') return;
    shown = null;
    put(root, failure(error, showAddress));
  } finally {
    clearTimeout(wait);
  }
}
