// The server's events. All pages share one stream, which is open while there are listeners and the tab is
// visible.

import { may } from './session.js';

let source = null;
let state = 'closed';
const listeners = new Map();
const KINDS = ['now', 'call', 'changed'];

/**
 * Calls `act` with each event of a kind until the signal aborts. Kinds: `now`, `call` and `changed` are the
 * server's, and `state` is `open`, `lost` or `closed`.
 * @param {string} kind
 * @param {(data: any) => void} act
 */
export function listen(kind, act, signal) {
  if (!listeners.has(kind)) listeners.set(kind, new Set());
  listeners.get(kind).add(act);
  signal?.addEventListener('abort', () => {
    listeners.get(kind).delete(act);
    openOrClose();
  });
  openOrClose();
  if (kind === 'state') act(state);
}

function openOrClose() {
  const wanted =
    !document.hidden && may('GET /events') && [...listeners.values()].some((set) => set.size > 0);
  if (wanted && !source) open();
  if (!wanted && source) {
    source.close();
    source = null;
    state = 'closed';
  }
}

function open() {
  source = new EventSource('/admin/v1/events');
  source.onopen = () => dispatch('state', (state = 'open'));
  source.onerror = () => {
    dispatch('state', (state = 'lost'));
    // The browser reconnects by itself, unless the response was not an event stream.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(openOrClose, 3000);
    }
  };
  for (const kind of KINDS)
    source.addEventListener(kind, (event) => {
      try {
        dispatch(kind, JSON.parse(event.data));
      } catch {
        /* The event is incomplete. */
      }
    });
}

function dispatch(kind, data) {
  for (const act of listeners.get(kind) ?? []) act(data);
}

document.addEventListener('visibilitychange', openOrClose);
window.addEventListener('pagehide', () => {
  source?.close();
  source = null;
});
window.addEventListener('pageshow', openOrClose);
