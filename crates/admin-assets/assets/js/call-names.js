// How the pages name a call: by the end of its id, by its key, and by its model.

/** A key's name. Its id if the name is unknown, and a dash if the call has no key. */
export const keyName = (row) => row.key_name ?? row.key ?? '–';

/** The end of an id, which is enough to distinguish the rows of a list. */
export const shortId = (id) => `…${String(id).slice(-8)}`;

/** The name of the model that served, or else of the model that was asked for. */
export const modelName = (model) =>
  (typeof model === 'object' && model ? (model.served ?? model.asked) : model) ?? '–';
