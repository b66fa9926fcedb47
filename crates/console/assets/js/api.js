// The admin API as the pages call it: JSON in and out, errors with their way out, the sign of the session on what changes something.
// Knows no page.

const ROOT = '/admin/v1/';
let csrf = null;
let signedOut = () => {};

/** Takes the session's sign, which no other site can read. */
export function setCsrfToken(token) { csrf = token; }

/** What is done when the server says that nobody is signed in. */
export function onSignedOut(act) { signedOut = act; }

/** An answer that is no success. */
export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
    this.remedy = error?.remedy ?? null;
    this.field = error?.field ?? null;
    this.doc = errorPage(error?.doc ?? error?.doc_url);
    this.retryAfter = retryAfter;
  }
}

/** What is refused names its page as the repository has it; the same page is in this server's book. */
function errorPage(address) {
  const page = /\/docs\/((?:admin-)?errors\/[a-z0-9_]+)\.md$/.exec(String(address ?? ''));
  return page && `/docs/${page[1]}`;
}

/** The answer itself, whatever it is; network failures become words. */
export async function send(method, path, { body, headers, signal, query } = {}) {
  const allHeaders = { accept: 'application/json', ...headers };
  if (body !== undefined) allHeaders['content-type'] = 'application/json';
  if (csrf && method !== 'GET') allHeaders['x-headrace-csrf'] = csrf;
  try {
    return await fetch(ROOT + path + queryOf(query), { method, headers: allHeaders, signal, credentials: 'same-origin', cache: 'no-store',
      body: body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body) });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, { code: 'unreachable', message: 'The server does not answer.', remedy: 'Is it running? The page asks again when you press Retry.' });
  }
}

/** An error made of an answer that is no success. */
export async function readError(answer) {
  let error = null;
  try {
    const body = JSON.parse(await answer.text());
    error = typeof body.error === 'string' ? { message: body.error } : body.error;
  } catch { /* not JSON: the status has to do */ }
  return new ApiError(answer.status, error, Number(answer.headers.get('retry-after')) || null);
}

async function call(method, path, options = {}) {
  const answer = await send(method, path, options);
  if (!answer.ok) {
    const error = await readError(answer);
    if (answer.status === 401 && !options.quiet) signedOut();
    throw error;
  }
  return answer.status === 204 ? null : answer.json();
}

/** `GET`. */
export const get = (path, options) => call('GET', path, options);
/** `POST`. */
export const post = (path, body, options) => call('POST', path, { body: body ?? {}, ...options });
/** `PATCH`. */
export const patch = (path, body) => call('PATCH', path, { body });
/** `PUT`. */
export const replace = (path, body) => call('PUT', path, { body });
/** `DELETE`. */
export const remove = (path) => call('DELETE', path, {});

/** All pages of a list, up to a bound that no page of the console needs more than. */
export async function fetchAll(path, { query, signal, most = 2000 } = {}) {
  const rows = [];
  let cursor = null;
  do {
    const page = await get(path, { query: { ...query, limit: 500, cursor }, signal });
    rows.push(...rowsOf(page));
    cursor = page?.next ?? null;
  } while (cursor && rows.length < most);
  return rows;
}

/** The rows of a list, whether it stands alone or in `data`. */
export function rowsOf(page) {
  return Array.isArray(page) ? page : Array.isArray(page?.data) ? page.data : [];
}

function queryOf(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return given.length ? '?' + new URLSearchParams(given).toString() : '';
}

/** A segment of a path, whatever stands in it. */
export const segment = (text) => encodeURIComponent(String(text));
