// Describes the entries of the audit log in words: act, actor and detail. A code that is not listed here is
// shown as the server writes it.

const ACTS = {
  'key.rotate': ['Key rotated', 'info'],
  'user.create': ['User created', 'good'],
  'user.change': ['User changed', 'info'],
  'user.deactivate': ['User deactivated', 'warn'],
  'user.activate': ['User activated', 'good'],
  'user.remove': ['User removed', 'warn'],
  'service_account.create': ['Service account created', 'good'],
  'service_account.deactivate': ['Service account deactivated', 'warn'],
  'service_account.activate': ['Service account activated', 'good'],
  'service_account.remove': ['Service account removed', 'warn'],
  'group.create': ['Group created', 'good'],
  'group.change': ['Group changed', 'info'],
  'group.remove': ['Group removed', 'warn'],
  'scim.create': ['SCIM credential created', 'good'],
  'scim.revoke': ['SCIM credential revoked', 'warn'],
  'key.create': ['Key created', 'good'],
  'key.revoke': ['Key revoked', 'warn'],
  'key.limits': ['Limits of a key', 'info'],
  'key.regions': ['Regions of a key', 'info'],
  'org.create': ['Organisation created', 'good'],
  'tier.create': ['New tier', 'info'],
  'tier.change': ['Rules of a tier', 'info'],
  'tier.remove': ['Tier removed', 'info'],
  'org.tier': ['Tier of an organisation', 'info'],
  'project.tier': ['Tier of a project', 'info'],
  'key.tier': ['Tier of a key', 'info'],
  'key.change': ['Owner or addresses of a key', 'info'],
  'org.limits': ['Limits of an organisation', 'info'],
  'org.regions': ['Regions of an organisation', 'info'],
  'project.create': ['Project created', 'good'],
  'project.limits': ['Limits of a project', 'info'],
  'project.records': ['Records of a project', 'info'],
  'content.read': ['Request and answer read', 'warn'],
  'content.search': ['Requests and answers searched', 'warn'],
  'dataset.create': ['Dataset created', 'good'],
  'dataset.read': ['Dataset read', 'warn'],
  'dataset.remove': ['Dataset removed', 'info'],
  'user.forget': ['User forgotten', 'warn'],
  'credit.grant': ['Credit granted', 'good'],
  'credit.correct': ['Credit corrected', 'warn'],
  'budget.set': ['Budget set', 'info'],
  'charge.refund': ['Charge refunded', 'warn'],
  'lot.make': ['Lot made', 'good'],
  'lot.end': ['Lot ended', 'warn'],
  'contract.payment': ['Payment of a contract', 'good'],
  'free_tier.set': ['Free tier set', 'info'],
  'free_tier.remove': ['Free tier removed', 'info'],
  'low_balance.set': ['Policy for a low balance', 'info'],
  'operator.create': ['Operator created', 'good'],
  'operator.revoke': ['Operator removed', 'warn'],
  'operator.link': ['Sign-in link made', 'info'],
  'operator.sign_in': ['Signed in', ''],
  'operator.sign_out': ['Signed out', ''],
  'ledger.verify': ['Ledger verified', 'info'],
  'invoice.final': ['Invoice is final', 'good'],
  'credit_note.final': ['Credit note is final', 'good'],
  'webhook.test': ['Test event sent', 'info'],
  'webhook.resume': ['Webhook resumed', 'good'],
  'receipt_key.rotate': ['Another key signs receipts', 'info'],
  'config.reload': ['Configuration reloaded', 'info'],
  'playground.call': ['Call from the playground', ''],
  'upstream.drain': ['Upstream drained', 'warn'],
  'upstream.resume': ['Upstream resumed', 'good'],
  'upstream.probe': ['Upstream probed', 'info'],
  'canary.roll_back': ['Canary rolled back', 'bad'],
  'canary.resume': ['Canary resumed', 'good'],
};

/** The name of an act, and the kind of its badge. */
export const actOf = (act) => ACTS[act] ?? [String(act).replaceAll(/[._]/g, ' '), 'info'];

/** The actor's name and operator id. `owner (op_…)` is the operator with the name "owner". */
export function actorOf(actor) {
  const [, name, id] = /^(.*) \((op_\w+)\)$/.exec(String(actor)) ?? [null, String(actor), null];
  return { name, id };
}

/** The detail of an entry. JSON becomes words: `{"org": "a", "weight": 5}` is `org a, weight 5`. */
export function detailOf(detail) {
  const text = String(detail ?? '').replaceAll(
    'unlimited requests/min, unlimited tokens/min, unlimited at once',
    'no limits',
  );
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return describe(JSON.parse(text));
  } catch {
    return text;
  }
}

function describe(value, name = '') {
  const named = (text) => (name ? `${name.replaceAll('_', ' ')} ${text}` : text);
  if (value === null || value === undefined) return named('none');
  if (Array.isArray(value)) return named(value.map((item) => describe(item)).join(', ') || 'none');
  if (typeof value === 'object' && value.dollars !== undefined) return named(`$${value.dollars}`);
  // Omits `entry`, which identifies an entry of the configuration for programs.
  if (typeof value === 'object')
    return named(
      Object.entries(value)
        .filter(([key]) => key !== 'entry')
        .map(([key, field]) => describe(field, key))
        .join(', ') || 'none',
    );
  if (/nano_dollars$/.test(name) && /^-?\d+$/.test(String(value)))
    return `${name.replace(/_?nano_dollars$/, '').replaceAll('_', ' ')} $${dollars(value)}`.trim();
  return named(typeof value === 'boolean' ? (value ? 'yes' : 'no') : String(value));
}

/** Converts nano-dollars to dollars without rounding. */
function dollars(nano) {
  const whole = BigInt(nano);
  const digits = String(whole < 0n ? -whole : whole).padStart(10, '0');
  return `${whole < 0n ? '-' : ''}${digits.slice(0, -9)}.${digits.slice(-9).replace(/0+$/, '').padEnd(2, '0')}`;
}
