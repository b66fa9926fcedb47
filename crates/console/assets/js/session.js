// Who is signed in, and what they may do. Keeps no secret: the session is a cookie that scripts cannot read.

import { get, post, remove, setCsrfToken } from './api.js';

/** Roles from least to most, for where the server does not tell each right. */
const RANK = { viewer: 0, billing: 1, developer: 1, admin: 2, owner: 3 };
let session = null;

/** The session as the server describes it, or null. */
export const current = () => session;

/** Asks who is signed in; null where nobody is. */
export async function restore() {
  try {
    return setSession(await get('session', { quiet: true }));
  } catch (error) {
    if (error.status === 401) return null;
    throw error;
  }
}

/** Signs in, with `{link}` or `{key}`. */
export const signIn = async (credentials) => setSession(await post('session', credentials, { quiet: true }));

/** Signs out. */
export async function signOut() {
  try { await remove('session'); } finally { setSession(null); }
}

function setSession(described) {
  session = described;
  setCsrfToken(described?.csrf ?? null);
  return described;
}

/** The name to greet. */
export function name() {
  const operator = session?.operator;
  return typeof operator === 'object' && operator ? operator.name ?? operator.id : operator ?? '';
}

/** The role's name. */
export const role = () => session?.role ?? session?.operator?.role ?? 'viewer';

/**
 * Whether this operator may call a route, such as `POST /keys/{id}/revoke`. The session lists them; a server that lists none is
 * judged by the rank of roles. Of several, with `|` between, one is enough.
 */
export function may(route) {
  return route.split('|').some(allowed);
}

function allowed(route) {
  const routes = session?.may;
  if (Array.isArray(routes)) return routes.includes(route);
  return RANK[role()] >= (route.startsWith('GET') ? 0 : 1);
}
