// Which project and which model this browser used last, so that forms begin with them. Keeps no secret.

import { keep, load } from './settings.js';

/** The names under which they are kept. */
const LAST = { project: 'last.project', model: 'last.model', org: 'last.org' };

/** Remembers what was chosen or asked. */
export const remember = (kind, id) => keep(LAST[kind], id);

/**
 * The one to begin with among `ids`: what is wanted, else what was used last, else the one called `default`, else the first.
 * @param {string} kind `project`, `model` or `org`
 */
export function initialChoice(kind, ids, wanted) {
  return [wanted, load(LAST[kind]), 'default'].find((id) => ids.includes(id)) ?? ids[0] ?? '';
}
