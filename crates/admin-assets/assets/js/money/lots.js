// The lots and contracts of an organisation.

import { fetchAll } from '../api.js';
import { h } from '../dom.js';
import { money } from '../format.js';
import { empty, load, when } from '../ui/parts.js';
import { dialog } from '../ui/dialog.js';
import { table } from '../ui/table.js';

/** Shows the lots of the organisation of a row of balances. */
export async function lots(row, signal) {
  return dialog(
    `Lots of ${row.org}`,
    () => {
      const place = h('div', { class: 'dialog-body' });
      load(
        place,
        async () => {
          const rows = await fetchAll('lots', { query: { org: row.org }, signal });
          return rows.length
            ? table(
                'Lots',
                [
                  { name: 'Lot', cell: (lot) => lot.id },
                  { name: 'Kind', cell: (lot) => lot.kind },
                  { name: 'Left', num: true, cell: (lot) => h('b', {}, money(lot.left)) },
                  { name: 'Of', num: true, cell: (lot) => money(lot.amount) },
                  { name: 'Ends', cell: (lot) => (lot.ends ? when(lot.ends, { seconds: false }) : 'never') },
                  { name: 'Models', cell: (lot) => lot.models?.join(', ') ?? 'all' },
                  { name: 'Reference', wide: true, cell: (lot) => lot.reference },
                ],
                rows,
              )
            : empty('There are no lots.', 'All of the balance is without an end, and for all models.');
        },
        { signal },
      );
      return place;
    },
    { wide: true },
  );
}
