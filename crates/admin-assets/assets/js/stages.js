// The stages of a call, with their groups and descriptions. Traces and errors have the same names.

/** The stages in the order of the request path, grouped by the part of the server that needs the time. */
export const GROUPS = [
  {
    id: 'gateway',
    name: 'Gateway',
    stages: [
      'connect',
      'authenticate',
      'receive',
      'parse',
      'authorize',
      'route',
      'moderate',
      'render',
      'cache',
      'hold',
      'place',
    ],
  },
  { id: 'engine', name: 'Engine', stages: ['upstream', 'queue', 'prefill', 'decode'] },
  { id: 'back', name: 'Delivery', stages: ['handover', 'reader', 'postprocess', 'deliver', 'settle'] },
];

/** The names of all stages. */
export const STAGES = GROUPS.flatMap((group) => group.stages);

const DESCRIPTIONS = {
  connect: 'Opens the connection and reads the headers',
  authenticate: 'Finds the caller by the key',
  receive: 'Reads the body, as fast as the client sends it',
  parse: 'Parses the body',
  authorize: 'Checks that the key may use the endpoint and the model',
  route: 'Finds the model for the requested name',
  moderate: 'Applies the content rules',
  render: 'Converts the messages to token ids',
  cache: 'Computes the cache keys of the prompt’s blocks',
  hold: 'Reserves limits and money, all or nothing',
  place: 'Chooses a worker',
  upstream: 'Waits for the upstream server',
  queue: 'Waits for a place in the batch',
  prefill: 'Reads the prompt',
  decode: 'Writes the answer, token by token',
  handover: 'Passes the answer between tasks',
  reader: 'Waits for a client that does not read',
  postprocess: 'Finds tool calls in the text',
  deliver: 'Sends bytes to the client',
  settle: 'Records usage and price, and charges the call',
};

/** Describes a stage in a few words. */
export const describeStage = (stage) => DESCRIPTIONS[stage] ?? '';
