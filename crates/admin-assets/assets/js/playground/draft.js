// The state of the playground that survives a reload: settings, conversations, the text in the message box,
// and pending calls with their idempotency keys and bodies.

import { keep, load } from '../settings.js';
import { hasWords } from './call.js';

const NAME = 'playground';
/**
 * Only the newest turns keep the probabilities of their tokens, so that the browser's storage does not fill.
 */
const TURNS_WITH_TOKENS = 6;

const FRESH = () => ({
  project: '',
  system: '',
  input: '',
  images: [],
  params: {},
  more: '',
  tools: '',
  mocks: {},
  tool_choice: '',
  proceed: false,
  format: 'text',
  schema: '',
  stream: true,
  plain: false,
  panes: [{ model: '', turns: [], pending: null }],
});

/** Loads the stored draft, or a new one. */
export function restore() {
  const kept = load(NAME);
  return kept && Array.isArray(kept.panes) && kept.panes.length ? { ...FRESH(), ...kept } : FRESH();
}

/** Stores the draft without its pictures, which are larger than the browser's storage. */
export function store(draft) {
  const panes = draft.panes.map((pane) => ({
    ...pane,
    turns: pane.turns.map((turn, at) =>
      at >= pane.turns.length - TURNS_WITH_TOKENS || !turn.tokens ? turn : { ...turn, tokens: null },
    ),
  }));
  keep(NAME, { ...draft, images: [], panes });
}

/** Removes the conversations and keeps the settings. */
export function clear(draft) {
  for (const pane of draft.panes) Object.assign(pane, { turns: [], pending: null });
}

/** Generates an idempotency key of 128 random bits. Works without TLS, unlike `crypto.randomUUID`. */
export function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Converts turns to messages of the chat dialect. */
export function messagesOf(draft, turns) {
  const messages = draft.system.trim() ? [{ role: 'system', content: draft.system }] : [];
  for (const turn of turns) {
    if (turn.role === 'user') {
      messages.push({
        role: 'user',
        content: turn.images?.length
          ? [
              ...turn.images.map((url) => ({ type: 'image_url', image_url: { url } })),
              { type: 'text', text: turn.text },
            ]
          : turn.text,
      });
    } else if (turn.role === 'tool')
      messages.push({ role: 'tool', tool_call_id: turn.id, content: turn.text });
    else if (hasWords(turn)) {
      const message = { role: 'assistant', content: turn.text };
      if (turn.calls?.length)
        message.tool_calls = turn.calls.map((call) => ({
          id: call.id,
          type: 'function',
          function: { name: call.name, arguments: call.args },
        }));
      messages.push(message);
    }
  }
  return messages;
}

/** The error of a text that must be empty or JSON, or `null`. */
export function jsonFault(text, label) {
  if (!text.trim()) return null;
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return `${label} is not JSON: ${error.message}`;
  }
}

/** The list of tools. Empty if their text is not JSON yet. */
export function toolsOf(draft) {
  try {
    const tools = JSON.parse(draft.tools || '[]');
    return (Array.isArray(tools) ? tools : [tools]).map((tool) =>
      tool.function ? tool : { type: 'function', function: tool },
    );
  } catch {
    return [];
  }
}

/** The body of the next call. Throws if a field that must be JSON is not. */
export function bodyOf(draft, pane) {
  for (const fault of [
    jsonFault(draft.tools, 'Tools'),
    draft.format === 'json_schema' && jsonFault(draft.schema, 'The schema'),
    jsonFault(draft.more, 'Other parameters'),
  ])
    if (fault) throw new Error(fault);
  const body = { model: pane.model, messages: messagesOf(draft, pane.turns) };
  for (const [name, value] of Object.entries(draft.params)) {
    if (value === null || value === undefined || value === '' || value === false) continue;
    body[name] = name === 'stop' ? value.split('\n').filter(Boolean) : value;
  }
  if (body.top_logprobs !== undefined) body.logprobs = true;
  const tools = toolsOf(draft);
  if (tools.length) {
    body.tools = tools;
    if (draft.tool_choice)
      body.tool_choice = ['auto', 'none', 'required'].includes(draft.tool_choice)
        ? draft.tool_choice
        : { type: 'function', function: { name: draft.tool_choice } };
  }
  if (draft.format === 'json_object') body.response_format = { type: 'json_object' };
  if (draft.format === 'json_schema' && draft.schema.trim())
    body.response_format = {
      type: 'json_schema',
      json_schema: { name: 'answer', strict: true, schema: JSON.parse(draft.schema) },
    };
  if (draft.stream) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
  return Object.assign(body, JSON.parse(draft.more.trim() || '{}'));
}
