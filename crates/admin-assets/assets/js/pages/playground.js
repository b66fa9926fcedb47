// A chat with one or two models. Stores the idempotency key of a call before sending it, so that a second
// Enter, a reload or a broken connection get the same answer and no second call.

import { fetchAll, get } from '../api.js';
import { add, h, icon, put } from '../dom.js';
import { initialChoice, remember } from '../last-used.js';
import { may } from '../session.js';
import { button, copyButton, empty, failure, head, load, tabs, toast } from '../ui/parts.js';
import { dialog } from '../ui/dialog.js';
import { emptyAnswer, hasWords, markStopped, readAnswer, stop } from '../playground/call.js';
import { curl, python, typescript } from '../playground/code.js';
import { bodyOf, clear, freshKey, messagesOf, restore, store, toolsOf } from '../playground/draft.js';
import { settingsPanel } from '../playground/settings.js';
import { renderPrompt, tokenViewOptions } from '../playground/rendered-prompt.js';
import { tokenView } from '../playground/tokens.js';
import { drawAnswer, turnNode } from '../playground/turn.js';

/** Shows the page. */
export async function show(root, { signal }) {
  const body = h('div', { class: 'pg' });
  const draft = restore();
  const acts = h('div', { class: 'acts' });
  put(root, head('Playground', null, acts), body);
  root.classList.add('fills');
  const [models, projects, status] = await Promise.all([
    fetchAll('models', { signal }),
    fetchAll('projects', { signal }).catch(() => []),
    get('status', { signal }).catch(() => null),
  ]);
  if (signal.aborted) return;
  // A model without a list of endpoints may have this one: its upstream decides.
  const chats = models.filter(
    (model) =>
      !model.endpoints?.length || model.endpoints.some((endpoint) => /^chat.completions$/.test(endpoint)),
  );
  if (chats.length === 0)
    return add(
      body,
      empty(
        'No chat model is served.',
        'Start the server with one: headrace up --model PATH, or name an upstream in its configuration.',
      ),
    );
  new Playground({ draft, body, acts, models: chats, projects, status, signal }).draw();
}

class Playground {
  constructor(parts) {
    Object.assign(this, parts);
    const { draft, models, projects } = this;
    const byReady = [...models].sort((a, b) => Boolean(a.not_ready?.length) - Boolean(b.not_ready?.length));
    for (const pane of draft.panes)
      pane.model = initialChoice(
        'model',
        byReady.map((model) => model.name),
        pane.model,
      );
    draft.project = initialChoice(
      'project',
      projects.map((project) => project.id),
      draft.project,
    );
    // By pane: the abort controller of the answer that is being read, and the answer whose connection broke.
    // Then the panes whose call the reader has stopped.
    this.reading = new Map();
    this.broken = new Map();
    this.stopping = new Set();
  }

  keep() {
    store(this.draft);
  }

  busy() {
    return this.reading.size > 0;
  }

  draw() {
    const { draft } = this;
    const changed = () => this.keep();
    this.panes = h('div', { class: 'pg-panes' });
    this.input = h('textarea', {
      class: 'pg-input',
      rows: 2,
      placeholder: 'Enter sends, Shift Enter starts a new line.',
      'aria-label': 'Message',
      prop: { value: draft.input },
      on: {
        input: () => {
          draft.input = this.input.value;
          changed();
        },
        keydown: (event) => {
          if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            if (!event.repeat || !this.busy()) this.send();
          }
          if (event.key === 'Escape' && this.busy()) this.stop();
        },
      },
    });
    this.sendButton = button('Send', () => (this.busy() ? this.stop() : this.send()), {
      kind: 'primary',
      sign: 'send',
    });
    this.pictures = h('div', { class: 'pg-pictures' });
    this.errorBox = h('div');
    const side = h(
      'aside',
      { class: 'pg-side', 'aria-label': 'Parameters' },
      settingsPanel({
        draft,
        projects: this.projects,
        changed,
        redraw: () => {
          for (const pane of draft.panes) if (!this.reading.has(pane)) this.drawLog(pane);
        },
      }),
    );
    const toggle = button(
      'Parameters',
      () => {
        const open = side.classList.toggle('open');
        toggle.setAttribute('aria-expanded', String(open));
      },
      { kind: 'only-mid', sign: 'settings', 'aria-expanded': 'false' },
    );
    put(
      this.acts,
      toggle,
      button(draft.panes.length === 2 ? 'One model' : 'Two models', () => this.split(), { sign: 'split' }),
      may('POST /models/{name}/render') && button('Tokens', () => this.showTokens(), { sign: 'cache' }),
      button('Code', () => this.code(), { sign: 'copy' }),
      button('New', () => this.startOver(), { sign: 'plus' }),
    );
    put(
      this.body,
      h(
        'div',
        { class: 'pg-main card flush' },
        this.panes,
        h(
          'div',
          { class: 'pg-compose' },
          this.errorBox,
          this.pictures,
          h('div', { class: 'pg-row' }, this.attach(), this.input, this.sendButton),
        ),
      ),
      side,
    );
    this.drawPanes();
    this.input.focus();
    for (const pane of draft.panes) if (pane.pending) this.run(pane);
  }

  drawPanes() {
    put(
      this.panes,
      this.draft.panes.map((pane, at) => {
        const log = h('div', {
          class: 'pg-log',
          role: 'log',
          'aria-label': `Conversation with ${pane.model}`,
          tabindex: 0,
        });
        const choose = h(
          'select',
          {
            'aria-label': at ? 'Second model' : 'Model',
            disabled: this.reading.has(pane),
            on: {
              change: () => {
                pane.model = choose.value;
                this.keep();
                this.updateAttachButton();
              },
            },
          },
          this.models.map((model) =>
            h(
              'option',
              { value: model.name, selected: model.name === pane.model },
              model.not_ready?.length ? `${model.name} (not ready)` : model.name,
            ),
          ),
        );
        // A property that is not enumerable, so that it is not stored with the draft.
        Object.defineProperty(pane, 'view', { value: { log, choose }, configurable: true });
        this.drawLog(pane);
        return h(
          'section',
          { class: 'pg-pane', 'aria-label': pane.model },
          h('div', { class: 'pg-pane-head' }, choose),
          log,
        );
      }),
    );
    this.updateAttachButton();
    this.updateButtons();
  }

  drawLog(pane) {
    const { log } = pane.view;
    const last = pane.turns.length - 1;
    if (pane.turns.length === 0 && !pane.pending)
      put(
        log,
        empty('No messages yet.', 'A message is a call like any other, with limits, a price and a trace.'),
      );
    else
      put(
        log,
        pane.turns.map((turn, at) =>
          turnNode(turn, {
            draft: this.draft,
            last: at === last && !pane.pending,
            signal: this.signal,
            act: this.actionsOf(pane),
          }),
        ),
      );
    log.scrollTop = log.scrollHeight;
  }

  actionsOf(pane) {
    return { again: () => this.regenerate(pane), results: (texts) => this.sendResults(pane, texts) };
  }

  updateButtons() {
    const busy = this.busy();
    put(this.sendButton, icon(busy ? 'stop' : 'send'), h('span', {}, busy ? 'Stop' : 'Send'));
    this.sendButton.classList.toggle('primary', !busy);
    for (const pane of this.draft.panes) pane.view.choose.disabled = this.reading.has(pane);
  }

  send() {
    const { draft } = this;
    const text = draft.input.trim();
    if (!text && draft.images.length === 0) return;
    if (this.busy()) return;
    const turn = { role: 'user', text: draft.input, images: [...draft.images] };
    try {
      for (const pane of draft.panes) bodyOf(draft, { ...pane, turns: [...pane.turns, turn] });
    } catch (error) {
      return put(this.errorBox, failure(error));
    }
    put(this.errorBox);
    Object.assign(draft, { input: '', images: [] });
    this.input.value = '';
    put(this.pictures);
    for (const pane of draft.panes) {
      this.abandon(pane);
      pane.turns = pane.turns.filter((earlier) => !earlier.error || hasWords(earlier));
      pane.turns.push(turn);
      this.startCall(pane);
    }
  }

  /** Gives up a pending call: stops it at the server, and keeps the content that has arrived. */
  abandon(pane) {
    if (!pane.pending) return;
    stop(pane.pending.key);
    const turn = this.broken.get(pane);
    if (turn && hasWords(turn)) {
      turn.error = null;
      markStopped(turn);
      pane.turns.push(turn);
    }
    this.broken.delete(pane);
    pane.pending = null;
  }

  /** Starts a call. Stores its idempotency key before sending it. */
  startCall(pane) {
    if (pane.pending) return;
    try {
      pane.pending = {
        key: freshKey(),
        body: JSON.stringify(bodyOf(this.draft, pane)),
        project: this.draft.project,
      };
    } catch (error) {
      return put(this.errorBox, failure(error));
    }
    remember('project', this.draft.project);
    remember('model', this.draft.panes[0].model);
    this.keep();
    this.run(pane);
  }

  async run(pane) {
    const turn = emptyAnswer();
    const node = h('article', { class: 'turn assistant' });
    const context = {
      draft: this.draft,
      act: this.actionsOf(pane),
      last: true,
      growing: true,
      signal: this.signal,
    };
    const ending = new AbortController();
    const leave = () => ending.abort();
    this.signal.addEventListener('abort', leave, { once: true });
    this.reading.set(pane, ending);
    this.broken.delete(pane);
    this.drawLog(pane);
    this.updateButtons();
    const { log } = pane.view;
    drawAnswer(node, turn, context);
    add(log, node);
    log.scrollTop = log.scrollHeight;
    let frame = 0;
    const onGrowth = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        const atBottom = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
        drawAnswer(node, turn, context);
        if (atBottom) log.scrollTop = log.scrollHeight;
      });
    };
    let connectionError = null;
    try {
      await readAnswer(pane.pending, pane.pending.project, turn, onGrowth, ending.signal);
    } catch (error) {
      if (this.signal.aborted) return;
      // A stopped call keeps its content, even if the connection broke.
      if (this.stopping.has(pane) || error.name === 'AbortError') markStopped(turn);
      else connectionError = error;
    } finally {
      this.signal.removeEventListener('abort', leave);
      this.reading.delete(pane);
    }
    // The reader stopped the call and needs no explanation.
    if (this.stopping.delete(pane)) turn.note = null;
    cancelAnimationFrame(frame);
    if (connectionError) {
      // The answer is incomplete. The key is kept, so a retry is the same call. A new question gives the call
      // up.
      this.broken.set(pane, turn);
      turn.error = connectionFailure(connectionError);
      this.updateButtons();
      return drawAnswer(node, turn, {
        ...context,
        growing: false,
        act: { ...context.act, again: () => this.run(pane) },
      });
    }
    if (!turn.error || !pane.turns.includes(turn)) pane.turns.push(turn);
    pane.pending = null;
    this.keep();
    this.drawLog(pane);
    this.updateButtons();
    if (
      this.draft.proceed &&
      turn.calls.length &&
      !turn.error &&
      turn.calls.every((call) => this.draft.mocks[call.name])
    )
      this.sendResults(
        pane,
        turn.calls.map((call) => this.draft.mocks[call.name]),
      );
  }

  stop() {
    for (const [pane, ending] of this.reading)
      if (!this.stopping.has(pane)) {
        this.stopping.add(pane);
        stop(pane.pending.key).finally(() => ending.abort());
      }
  }

  /** Answers the last question again with a new call, which is charged. */
  regenerate(pane) {
    if (this.busy()) return;
    this.abandon(pane);
    while (pane.turns.length && pane.turns.at(-1).role === 'assistant') pane.turns.pop();
    if (pane.turns.length) this.startCall(pane);
  }

  sendResults(pane, texts) {
    if (pane.pending) return;
    const { calls } = pane.turns.at(-1);
    calls.forEach((call, at) =>
      pane.turns.push({ role: 'tool', id: call.id, name: call.name, text: texts[at] }),
    );
    this.startCall(pane);
  }

  split() {
    const { draft } = this;
    if (this.busy()) return toast('Wait until the answer has ended.');
    if (draft.panes.length === 2) draft.panes.pop();
    else {
      const other = this.models.find((model) => model.name !== draft.panes[0].model) ?? this.models[0];
      draft.panes.push({ model: other.name, turns: [], pending: null });
    }
    this.keep();
    this.draw();
  }

  startOver() {
    if (this.busy()) return toast('Stop the answer first.');
    for (const pane of this.draft.panes) this.abandon(pane);
    clear(this.draft);
    put(this.errorBox);
    this.keep();
    this.drawPanes();
    this.input.focus();
  }

  attach() {
    this.file = h('input', {
      type: 'file',
      accept: 'image/*',
      multiple: true,
      class: 'off-screen',
      tabindex: -1,
      'aria-hidden': 'true',
      on: {
        change: async () => {
          for (const file of this.file.files) this.draft.images.push(await dataUrl(file));
          this.file.value = '';
          put(
            this.pictures,
            this.draft.images.map((url, at) =>
              h(
                'button',
                {
                  type: 'button',
                  title: 'Remove this picture',
                  on: {
                    click: (event) => {
                      this.draft.images.splice(at, 1);
                      event.currentTarget.remove();
                    },
                  },
                },
                h('img', { src: url, alt: 'A picture to send' }),
              ),
            ),
          );
        },
      },
    });
    this.attachButton = button('', () => this.file.click(), {
      kind: 'quiet',
      sign: 'plus',
      title: 'Add pictures',
    });
    return [this.file, this.attachButton];
  }

  /** Shows the button for pictures if every chosen model takes them. */
  updateAttachButton() {
    const takeImages = this.draft.panes.every((pane) =>
      this.models.find((model) => model.name === pane.model)?.input?.includes?.('image'),
    );
    this.attachButton.hidden = !takeImages;
  }

  code() {
    let body;
    try {
      const pane = this.draft.panes[0];
      const typed = this.draft.input.trim() ? [{ role: 'user', text: this.draft.input }] : [];
      const turns = [...pane.turns, ...typed];
      while (turns.at(-1)?.role === 'assistant') turns.pop();
      body = bodyOf(this.draft, { ...pane, turns });
    } catch (error) {
      return put(this.errorBox, failure(error));
    }
    const listen = this.status?.listen ?? '127.0.0.1:8080';
    const base = `${/^https?:/.test(listen) ? listen : `http://${listen}`}/v1`;
    const shown = (text) => (panel) =>
      add(
        panel,
        h('div', { class: 'with-copy' }, copyButton(text), h('pre', { class: 'code', tabindex: 0 }, text)),
      );
    return dialog(
      'The call as code',
      () =>
        h(
          'div',
          { class: 'dialog-body' },
          tabs(
            [
              { id: 'curl', name: 'curl', show: shown(curl(base, body)) },
              { id: 'python', name: 'Python', show: shown(python(base, body)) },
              { id: 'ts', name: 'TypeScript', show: shown(typescript(base, body)) },
            ],
            { label: 'Languages' },
          ),
        ),
      { wide: true },
    );
  }

  /** Shows the prompt by tokens, and the part that a cache of the earlier conversation contains. */
  showTokens() {
    const { draft } = this;
    const pane = draft.panes[0];
    const typed = draft.input.trim() ? [{ role: 'user', text: draft.input }] : [];
    const tools = toolsOf(draft);
    const bodyFor = (turns) => ({ messages: messagesOf(draft, turns), ...(tools.length ? { tools } : {}) });
    const body = bodyFor([...pane.turns, ...typed]);
    // The prompt of the last answer consists of the turns before it.
    const last = pane.turns.findLastIndex((turn) => turn.role === 'assistant');
    const after = last > 0 ? bodyFor(pane.turns.slice(0, last)) : null;
    const used = pane.turns.findLast((turn) => turn.usage)?.usage;
    return dialog(
      `What ${pane.model} sees`,
      () => {
        const place = h('div', { class: 'dialog-body' });
        load(
          place,
          async () =>
            tokenView(
              body.messages.length
                ? tokenViewOptions(await renderPrompt(pane.model, body, { after, signal: this.signal }), used)
                : { tokens: [] },
            ),
          { signal: this.signal },
        );
        return place;
      },
      { wide: true },
    );
  }
}

/** The error of a broken connection. */
const connectionFailure = (error) => ({
  code: error.code,
  message: error.status === 0 ? error.message : 'The connection broke before the answer was complete.',
  remedy:
    error.remedy ?? 'Retry reads the same answer, which is charged once. A new question stops this call.',
});

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
