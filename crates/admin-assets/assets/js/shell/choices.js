// The buttons of the reader's choices in the top bar of the console and of the book.

import { h, icon, put } from '../dom.js';
import { choice, choose } from '../settings.js';

const THEMES = {
  auto: ['light', 'Colours of the system'],
  light: ['dark', 'Light colours'],
  dark: ['auto', 'Dark colours'],
};

/** A button that switches between the system's, light and dark colours. */
export function theme() {
  const node = h('button', {
    type: 'button',
    class: 'button quiet',
    on: { click: () => choose('theme', THEMES[choice('theme')][0]) },
  });
  const draw = () => {
    const now = choice('theme');
    node.title = `${THEMES[now][1]}: change`;
    node.setAttribute('aria-label', node.title);
    put(node, icon(now === 'light' ? 'sun' : now === 'dark' ? 'moon' : 'contrast'));
  };
  document.addEventListener('choice', draw);
  draw();
  return node;
}

/** A button that switches between local times and UTC. */
export function clock() {
  const node = h('button', {
    type: 'button',
    class: 'button quiet',
    on: { click: () => choose('clock', choice('clock') === 'utc' ? 'local' : 'utc') },
  });
  const draw = () => {
    const utc = choice('clock') === 'utc';
    node.title = utc ? 'Times are in UTC: show local times' : 'Times are local: show UTC';
    put(node, icon('clock'), h('span', {}, utc ? 'UTC' : 'Local'));
  };
  document.addEventListener('choice', draw);
  draw();
  return node;
}
