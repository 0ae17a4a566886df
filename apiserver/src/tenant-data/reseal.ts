// Secrets that an installation seals with its own key (KELLET_CONTROL_SECRET), in exported rows: opened with the key of the
// installation that they come from, and sealed with that of this one.
import { hkdfSync } from 'node:crypto';
import { SealedSecrets } from '../platform/sealed-secrets.ts';

/** Returns a fingerprint of the key of an installation, which does not reveal it. */
export const secretsKey = (controlSecret: string): string =>
  Buffer.from(hkdfSync('sha256', controlSecret, '', 'kellet exported tenant', 16)).toString('hex');

type Row = Readonly<Record<string, string | null>>;
type Change = (sealed: string) => string;

interface SealedColumn {
  readonly column: string;
  readonly purpose: string;
  readonly owner: (row: Row) => string;
  /** Applies a change to the secrets in the column. By default the column itself is one. */
  readonly within?: (value: string, change: Change) => string;
}

const changeSecrets = (value: unknown, change: Change): unknown => {
  if (Array.isArray(value)) return value.map((item) => changeSecrets(item, change));
  if (value === null || typeof value !== 'object' || !('secret' in value)) return value;
  return { ...value, secret: value.secret === '' ? '' : change(String(value.secret)) };
};
const inActions = (value: string, change: Change): string => JSON.stringify(changeSecrets(JSON.parse(value), change));

const tenantOf = (row: Row): string => row['tenant_id']!;
const webhookPurpose = 'webhook secrets';
const idToken = {
  ...{ column: 'sso_id_token', purpose: 'single sign-on' },
  owner: (row: Row) => `${row['tenant_id']}/${row['user_id']}`,
};
const factors = { purpose: 'second factors', owner: (row: Row) => row['user_id']! };

/** The columns with sealed secrets. signing_keys are of the installation, and are not exported. */
export const sealedColumns: Readonly<Record<string, readonly SealedColumn[]>> = {
  second_factors: [
    { column: 'totp_secret', ...factors },
    { column: 'pending_totp_secret', ...factors },
  ],
  sso_providers: [
    { column: 'client_secret', purpose: 'single sign-on', owner: (row) => `${row['tenant_id']}/${row['provider']}` },
  ],
  sessions: [idToken],
  pending_sign_ins: [idToken],
  device_authorities: [
    {
      ...{ column: 'private_key', purpose: 'device certificate authorities' },
      owner: (row) => `${row['tenant_id']}/${row['authority_id']}`,
    },
  ],
  webhooks: [{ column: 'secret', purpose: webhookPurpose, owner: tenantOf }],
  rules: [{ column: 'actions', purpose: webhookPurpose, owner: tenantOf, within: inActions }],
  rule_actions: [{ column: 'action', purpose: webhookPurpose, owner: tenantOf, within: inActions }],
};

/** A secret cannot be sealed again. */
export class ResealError extends Error {}

/**
 * Returns a function that seals the secrets of a row again. Without a control secret of the other installation it throws
 * ResealError for a row that has secrets.
 */
export function resealer(table: string, from: string | undefined, to: string): (row: Row) => Row {
  const columns = (sealedColumns[table] ?? []).map((column) => ({
    ...column,
    before: from === undefined ? undefined : new SealedSecrets(from, column.purpose),
    after: new SealedSecrets(to, column.purpose),
  }));
  return (row) => {
    const changed: Record<string, string | null> = { ...row };
    for (const { column, owner, within, before, after } of columns) {
      const value = row[column];
      if (!value) continue;
      const change: Change = (sealed) => {
        if (!before)
          throw new ResealError(`secrets of ${table} were sealed by an installation with another control secret`);
        try {
          return after.seal(owner(row), before.open(owner(row), sealed));
        } catch (cause) {
          throw new ResealError(`a secret of ${table} cannot be opened with that control secret`, { cause });
        }
      };
      changed[column] = within ? within(value, change) : change(value);
    }
    return changed;
  };
}
