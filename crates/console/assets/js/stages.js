// The stages of a call, with their groups and descriptions. Traces and errors have the same names.

/** The stages in the order of the request path, grouped by the part of the server that needs the time. */
export const GROUPS = [
  { id: 'gateway', name: 'Gateway', stages: ['connect', 'authenticate', 'receive', 'parse', 'authorize', 'route', 'moderate', 'render', 'cache', 'hold', 'place'] },
  { id: 'engine', name: 'Engine', stages: ['upstream', 'queue', 'prefill', 'decode'] },
  { id: 'back', name: 'Way back', stages: ['handover', 'reader', 'postprocess', 'deliver', 'settle'] },
];

/** The names of all stages. */
export const STAGES = GROUPS.flatMap((group) => group.stages);

const DESCRIPTIONS = {
  connect: 'The connection and the head of the request', authenticate: 'Whose key it is', receive: 'The body, as fast as the client sends it',
  parse: 'One meaning of the bytes', authorize: 'May this key use this endpoint and model', route: 'The name to the model that serves',
  moderate: 'The rules for content', render: 'Words to token ids', cache: 'The keys of the prompt’s blocks', hold: 'Limits and money, all or nothing',
  place: 'Which worker', upstream: 'Waiting for somebody else’s server', queue: 'Waiting for a place in the batch', prefill: 'Reading the prompt',
  decode: 'Writing the answer, token by token', handover: 'The way between tasks', reader: 'Waiting for a client that does not read', postprocess: 'Tool calls out of the text',
  deliver: 'Bytes to the client', settle: 'Usage, price, money',
};

/** Describes a stage in a few words. */
export const describeStage = (stage) => DESCRIPTIONS[stage] ?? '';
