// Shows every setting with its value and origin, and the state of the server. Reloads the configuration.

import { fetchAll, get, post } from '../api.js';
import { h, put } from '../dom.js';
import { ago, count } from '../format.js';
import { rewrite } from '../router.js';
import { may } from '../session.js';
import { badge, button, card, empty, facts, failure, head, load, toast, when } from '../ui/parts.js';
import { field } from '../ui/dialog.js';
import { table } from '../ui/table.js';

const descriptionOf = (row) => row.what ?? row.doc ?? '';

/** Shows the page. */
export async function show(root, { query, signal }) {
  const errorBox = h('div');
  const status = card('Server', {}, h('div'));
  const place = h('div');
  const reload = async () => {
    put(errorBox);
    try {
      const { changed } = await post('reload');
      toast(changed?.length ? `Changed: ${changed.join(', ')}.` : 'Reloaded: nothing has changed.');
      list();
    } catch (error) {
      put(errorBox, failure(error));
    }
  };
  put(
    root,
    head(
      'Settings',
      'Every setting with its value and origin. Secrets are not shown.',
      may('POST /reload') && button('Reload the configuration', reload, { sign: 'redo' }),
    ),
    errorBox,
    status,
    place,
  );
  const list = () =>
    load(
      place,
      async () => {
        const rows = await fetchAll('settings', { signal });
        if (rows.length === 0) return empty('No setting is set.');
        let text = '';
        let onlySet = false;
        const body = h('div');
        const isDefault = (row) => String(row.origin).startsWith('default');
        const draw = () => {
          const shown = rows.filter(
            (row) =>
              `${row.name} ${row.value} ${row.origin} ${descriptionOf(row)}`.toLowerCase().includes(text) &&
              (!onlySet || !isDefault(row)),
          );
          put(
            body,
            shown.length
              ? table(
                  'Settings',
                  [
                    {
                      name: 'Setting',
                      wide: true,
                      sort: (row) => row.name,
                      cell: (row) => [
                        h('code', { class: 'break' }, row.name),
                        descriptionOf(row) &&
                          h(
                            'p',
                            { class: 'muted small clamp', title: descriptionOf(row) },
                            descriptionOf(row),
                          ),
                      ],
                    },
                    {
                      name: 'Value',
                      wide: true,
                      cell: (row) =>
                        row.value === null || row.value === undefined
                          ? h('span', { class: 'muted' }, '–')
                          : h('code', { class: 'break' }, String(row.value)),
                    },
                    {
                      name: 'From',
                      sort: (row) => row.origin,
                      cell: (row) =>
                        isDefault(row) ? h('span', { class: 'muted' }, 'default') : badge(row.origin, 'info'),
                    },
                    {
                      name: 'Changes',
                      cell: (row) =>
                        row.live ? 'while the server runs' : h('span', { class: 'muted' }, 'after a restart'),
                    },
                  ],
                  shown,
                )
              : empty('No setting matches.'),
          );
        };
        draw();
        const box = field('Find', {
          placeholder: 'Name, value, words',
          changed: (value) => {
            text = value.toLowerCase();
            draw();
          },
        });
        box.input.dataset.search = '';
        return card(
          null,
          { class: 'flush' },
          h(
            'div',
            { class: 'acts pad' },
            h('div', { class: 'finder' }, box.node),
            field('Only settings that differ from the default', {
              kind: 'check',
              changed: (value) => {
                onlySet = value;
                draw();
              },
            }).node,
          ),
          body,
        );
      },
      { signal, lines: 10 },
    );
  load(
    status.lastChild,
    async () => {
      const running = await get('status', { signal });
      return [
        facts(
          ['Version', running.version],
          ['Listens on', running.listen],
          ['Started', h('span', {}, when(running.started), ` (${ago(running.started)})`)],
          ['Process', running.pid && String(running.pid)],
          ['In flight', count(running.in_flight)],
          ['Models', (running.models ?? []).join(', ')],
          ['Aliases', (running.aliases ?? []).join(', ')],
          [
            'Stores',
            (running.stores ?? []).map((store) => [
              badge(store.store, store.failing ? 'bad' : 'good'),
              ' ',
              store.failing,
              ' ',
            ]),
          ],
        ),
        (running.not_ready ?? []).map((why) => h('p', { class: 'notice warn' }, why)),
      ];
    },
    { signal, lines: 2 },
  );
  list();
  if (query.get('do') === 'reload' && may('POST /reload')) {
    rewrite('settings');
    await reload();
  }
}
