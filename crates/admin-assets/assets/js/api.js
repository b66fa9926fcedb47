// Calls the admin API with JSON. Adds the session's CSRF token to requests that change something, and turns
// error responses into `ApiError`s. Knows no page.

const ROOT = '/admin/v1/';
let csrf = null;
let signedOut = () => {};

/** Sets the session's CSRF token, which no other site can read. */
export function setCsrfToken(token) {
  csrf = token;
}

/** Sets the function to call when the server answers that the session has ended. */
export function onSignedOut(act) {
  signedOut = act;
}

/** An error response of the admin API, or a failed connection (status 0). */
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

/**
 * The address of an error's page in this server's book. Errors name the page by its path in the repository.
 */
function errorPage(address) {
  const page = /\/docs\/((?:admin-)?errors\/[a-z0-9_]+)\.md$/.exec(String(address ?? ''));
  return page && `/docs/${page[1]}`;
}

/**
 * Sends a request and returns the response of any status. Throws an `ApiError` if the server cannot be
 * reached.
 */
export async function send(method, path, { body, headers, signal, query } = {}) {
  const allHeaders = { accept: 'application/json', ...headers };
  if (body !== undefined) allHeaders['content-type'] = 'application/json';
  if (csrf && method !== 'GET') allHeaders['x-headrace-csrf'] = csrf;
  try {
    return await fetch(ROOT + path + queryOf(query), {
      method,
      headers: allHeaders,
      signal,
      credentials: 'same-origin',
      cache: 'no-store',
      body: body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, {
      code: 'unreachable',
      message: 'The server does not answer.',
      remedy: 'Check that it runs, then press Retry.',
    });
  }
}

/** Reads the error of a response without success. */
export async function readError(answer) {
  let error = null;
  try {
    const body = JSON.parse(await answer.text());
    error = typeof body.error === 'string' ? { message: body.error } : body.error;
  } catch {
    /* The body is not JSON: the error has the status alone. */
  }
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

export const get = (path, options) => call('GET', path, options);
export const post = (path, body, options) => call('POST', path, { body: body ?? {}, ...options });
export const patch = (path, body) => call('PATCH', path, { body });
/** Sends a `PUT`. */
export const replace = (path, body) => call('PUT', path, { body });
export const remove = (path) => call('DELETE', path, {});

/** Fetches the pages of a list until it ends or has `most` rows. */
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

/** The rows of a list. Some routes return an array, others an object with `data`. */
export function rowsOf(page) {
  return Array.isArray(page) ? page : Array.isArray(page?.data) ? page.data : [];
}

function queryOf(query) {
  const given = Object.entries(query ?? {}).filter(
    ([, value]) => value !== null && value !== undefined && value !== '',
  );
  return given.length ? '?' + new URLSearchParams(given).toString() : '';
}

/** Encodes a text as one segment of a path. */
export const segment = (text) => encodeURIComponent(String(text));
