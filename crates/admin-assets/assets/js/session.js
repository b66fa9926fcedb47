// The signed-in operator and the routes that they may call. Stores no secret: the session is a cookie that
// scripts cannot read.

import { get, post, remove, setCsrfToken } from './api.js';

/** Roles by rank. Used if the server does not list the routes that the operator may call. */
const RANK = { viewer: 0, billing: 1, developer: 1, admin: 2, owner: 3 };
let session = null;

/** The session as the server describes it. `null` if no operator is signed in. */
export const current = () => session;

/** Fetches the session of the cookie. Returns `null` if there is none. */
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

/** The identity providers at which operators sign in. None if they cannot be listed. */
export async function providers() {
  try {
    return (await get('sign-in', { quiet: true })).data ?? [];
  } catch {
    return [];
  }
}

export async function signOut() {
  try {
    await remove('session');
  } finally {
    setSession(null);
  }
}

function setSession(described) {
  session = described;
  setCsrfToken(described?.csrf ?? null);
  return described;
}

/** The operator's name. */
export function name() {
  const operator = session?.operator;
  return typeof operator === 'object' && operator ? (operator.name ?? operator.id) : (operator ?? '');
}

/** The operator's role. */
export const role = () => session?.role ?? session?.operator?.role ?? 'viewer';

/**
 * Whether the operator may call a route, such as `POST /keys/{id}/revoke`, or at least one of several routes
 * with `|` between them. If the session lists no routes, the rank of the role decides.
 */
export function may(route) {
  return route.split('|').some(allowed);
}

function allowed(route) {
  const routes = session?.may;
  if (Array.isArray(routes)) return routes.includes(route);
  return RANK[role()] >= (route.startsWith('GET') ? 0 : 1);
}
