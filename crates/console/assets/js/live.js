// The server's events: one stream for the whole console, opened while somebody listens and the page can be seen.

import { may } from './session.js';

let source = null;
let state = 'closed';
const listeners = new Map();
const KINDS = ['now', 'call', 'changed'];

/**
 * Hears events of a kind (`now`, `call`, `changed`), and `state` (`open`, `lost`), until the signal ends it.
 * @param {string} kind
 * @param {(data: any) => void} act
 */
export function listen(kind, act, signal) {
  if (!listeners.has(kind)) listeners.set(kind, new Set());
  listeners.get(kind).add(act);
  signal?.addEventListener('abort', () => { listeners.get(kind).delete(act); openOrClose(); });
  openOrClose();
  if (kind === 'state') act(state);
}

function openOrClose() {
  const wanted = !document.hidden && may('GET /events') && [...listeners.values()].some((set) => set.size > 0);
  if (wanted && !source) open();
  if (!wanted && source) { source.close(); source = null; state = 'closed'; }
}

function open() {
  source = new EventSource('/admin/v1/events');
  source.onopen = () => dispatch('state', state = 'open');
  source.onerror = () => {
    dispatch('state', state = 'lost');
    // The browser tries again by itself, unless the answer was no stream at all.
    if (source?.readyState === EventSource.CLOSED) { source = null; setTimeout(openOrClose, 3000); }
  };
  for (const kind of KINDS) source.addEventListener(kind, (event) => { try { dispatch(kind, JSON.parse(event.data)); } catch { /* half an event */ } });
}

function dispatch(kind, data) {
  for (const act of listeners.get(kind) ?? []) act(data);
}

document.addEventListener('visibilitychange', openOrClose);
window.addEventListener('pagehide', () => { source?.close(); source = null; });
window.addEventListener('pageshow', openOrClose);
