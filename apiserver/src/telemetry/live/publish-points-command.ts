// The command kellet-apiserver publish-points: changes at run time which tenants' points are published on NATS.
import type { Database } from '../../platform/database/database.ts';
import { publicationChoices } from '../../policies/tenant-reader.ts';
import { choosePublication } from '../../tenants/tenant-store.ts';
import { configuredTenants } from './published-tenants.ts';

export const publishPointsUsage = `usage: kellet-apiserver publish-points list
       kellet-apiserver publish-points --tenant TENANT_ID on|off|default

  list      prints KELLET_PUBLISH_POINTS, and the tenants that do not follow it
  --tenant  publishes the points of a tenant on NATS, or not; default: as KELLET_PUBLISH_POINTS says`;

const choices = new Map<string | undefined, boolean | null>([
  ['on', true],
  ['off', false],
  // Follows KELLET_PUBLISH_POINTS.
  ['default', null],
]);

/** Dependencies of the command. */
export interface CommandParts {
  readonly database: Database;
  /** Value of KELLET_PUBLISH_POINTS. */
  readonly setting: string;
  readonly write: (line: string) => void;
}

/** Runs `kellet-apiserver publish-points …` and returns the exit code: 1 for an unknown tenant, 2 for bad usage. */
export async function runPublishPointsCommand(
  args: readonly string[],
  { database, setting, write }: CommandParts,
): Promise<number> {
  if (args.length === 1 && args[0] === 'list') {
    const chosen = await database.system((tx) => publicationChoices(tx));
    write(`KELLET_PUBLISH_POINTS: ${[...configuredTenants(setting)].join(', ') || 'none'}`);
    for (const [tenantId, isOn] of chosen) write(`${tenantId}: ${isOn ? 'on' : 'off'}`);
    return 0;
  }
  const words = args.flatMap((word) => (word.startsWith('--tenant=') ? ['--tenant', word.slice(9)] : [word]));
  const at = words.indexOf('--tenant');
  const [tenantId] = at < 0 ? [] : words.splice(at, 2).slice(1);
  const choice = choices.get(words[0]);
  if (tenantId === undefined || words.length !== 1 || choice === undefined) {
    write(publishPointsUsage);
    return 2;
  }
  const isKnown = await database.system((tx) => choosePublication(tx, tenantId, choice));
  write(isKnown ? `${tenantId}: ${words[0]}` : `there is no tenant ${JSON.stringify(tenantId)}`);
  return isKnown ? 0 : 1;
}
