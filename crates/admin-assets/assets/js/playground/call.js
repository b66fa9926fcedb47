// Sends a playground call with its idempotency key and reads the answer. After a reload the same key gives
// the same answer from its first byte. Draws nothing.

import { ApiError, readError, send } from '../api.js';

const TRIES = 5;

/** The longest wait for the end of a stopped answer. */
const STOP_WAIT_MS = 2000;
const STOP_AGAIN_MS = 200;
/** The error code, and the finish reason, of a stopped answer. */
const STOPPED = 'stopped';

/** An answer without content. `note` will say why it is incomplete. */
export const emptyAnswer = () => ({
  role: 'assistant',
  text: '',
  reasoning: '',
  calls: [],
  tokens: [],
  finish: null,
  usage: null,
  id: null,
  first_ms: null,
  took_ms: null,
  error: null,
  note: null,
});

/** Whether a turn has content to show or to send to a model. */
export const hasWords = (turn) => Boolean(turn.text || turn.calls?.length);

/**
 * Reads the answer of a pending call into `turn`, and calls `onGrowth(turn)` after each piece. Resolves when
 * the answer has ended: complete, stopped (`turn.finish`) or refused (`turn.error`). Throws if the connection
 * broke. The call is then still pending, and can be read again with the same key.
 */
export async function readAnswer(pending, project, turn, onGrowth, signal) {
  const began = performance.now();
  const answer = await ask(pending, project, signal);
  Object.assign(turn, emptyAnswer(), {
    id: answer.headers.get('x-request-id'),
    replayed: answer.headers.get('idempotent-replayed') === 'true',
  });
  if (!answer.ok) {
    const error = await readError(answer);
    if (error.code === STOPPED) return markStopped(turn);
    turn.error = {
      message: error.message,
      remedy: error.remedy,
      code: error.code,
      field: error.field,
      status: error.status,
      doc: error.doc,
    };
    return;
  }
  if (!(answer.headers.get('content-type') ?? '').startsWith('text/event-stream')) {
    const reply = await answer.json();
    turn.usage = reply.usage ?? null;
    append(turn, reply.choices?.[0]?.message, reply.choices?.[0]);
  } else {
    let whole = false;
    for await (const data of events(answer.body)) {
      if (data === '[DONE]') {
        whole = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) {
        if (chunk.error.code === STOPPED) markStopped(turn, chunk.error.message);
        else turn.error = { message: chunk.error.message, code: chunk.error.code };
        whole = true;
        continue;
      }
      turn.usage = chunk.usage ?? turn.usage;
      const choice = chunk.choices?.find((candidate) => candidate.index === 0) ?? chunk.choices?.[0];
      if (!choice) continue;
      turn.first_ms ??= Math.round(performance.now() - began);
      append(turn, choice.delta, choice);
      onGrowth(turn);
    }
    if (!whole && !turn.finish)
      throw new ApiError(0, {
        code: 'broken_off',
        message: 'The answer ended too early.',
        remedy: 'Retry to read the same answer, which is charged once.',
      });
  }
  turn.took_ms = Math.round(performance.now() - began);
}

/** Marks an answer as stopped and keeps its content. */
export function markStopped(turn, note = null) {
  turn.finish = STOPPED;
  turn.note = note;
}

/** Sends the call. Retries a 409 after the time that its `Retry-After` names. */
async function ask(pending, project, signal) {
  for (let at = 0; ; at++) {
    const headers = { 'idempotency-key': pending.key, accept: '*/*' };
    if (project) headers['x-headrace-project'] = project;
    const answer = await send('POST', 'playground/chat/completions', { body: pending.body, headers, signal });
    const again = Number(answer.headers.get('retry-after'));
    if (answer.status !== 409 || !again || at >= TRIES) return answer;
    await sleep(1000 * again);
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Asks the server to stop a call. Retries while the server does not know the call yet. Returns when the
 * answer should have ended.
 */
export async function stop(key) {
  const deadline = performance.now() + STOP_WAIT_MS;
  let stopped = false;
  while (!stopped && performance.now() < deadline) {
    const answer = await send('POST', 'playground/stop', {
      headers: { 'idempotency-key': key },
      body: {},
    }).catch(() => null);
    stopped = answer?.status !== 404 && answer !== null;
    if (!stopped) await sleep(STOP_AGAIN_MS);
  }
  await sleep(Math.max(0, deadline - performance.now()));
}

function append(turn, delta, choice) {
  turn.text += delta?.content ?? '';
  turn.reasoning += delta?.reasoning_content ?? delta?.reasoning ?? '';
  for (const call of delta?.tool_calls ?? []) {
    const at = call.index ?? turn.calls.length;
    turn.calls[at] ??= { id: call.id, name: '', args: '' };
    const whole = turn.calls[at];
    whole.id ??= call.id;
    whole.name += call.function?.name ?? '';
    whole.args += call.function?.arguments ?? '';
  }
  for (const token of choice.logprobs?.content ?? []) {
    turn.tokens.push({
      t: token.token,
      lp: token.logprob,
      top: (token.top_logprobs ?? []).map((other) => ({ t: other.token, lp: other.logprob })),
    });
  }
  turn.finish = choice.finish_reason ?? turn.finish;
}

/** Yields the `data` of server-sent events, parsed as in the HTML standard. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) data.push(line.slice(line.startsWith('data: ') ? 6 : 5));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
