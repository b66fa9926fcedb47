// Remembers the last project, model and organisation of this browser, so that forms start with them. Stores
// no secret.

import { keep, load } from './settings.js';

/** The storage names. */
const LAST = { project: 'last.project', model: 'last.model', org: 'last.org' };

/** Stores the id that was used last. */
export const remember = (kind, id) => keep(LAST[kind], id);

/**
 * Returns the first of these that is among `ids`: `wanted`, the last used, `default`. Otherwise the first id.
 * @param {string} kind `project`, `model` or `org`
 */
export function initialChoice(kind, ids, wanted) {
  return [wanted, load(LAST[kind]), 'default'].find((id) => ids.includes(id)) ?? ids[0] ?? '';
}
