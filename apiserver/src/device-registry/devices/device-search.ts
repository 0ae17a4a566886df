// Finds devices by a text in their name or hardware id, along an index of three characters each.
import type { Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';
import { patternOf } from './device-filters.ts';

/** Number of matches above which going through the list is faster than the index. */
const maximumFound = 10_000;

/** Texts shorter than this have no entry in the index. */
const minimumIndexed = 3;

/** Characters of a part that is looked for instead of a longer text, of which the index reads a list for each. */
const partLength = 6;

/**
 * Returns the end of a text if it is long and the end consists of letters and digits, which the index has; otherwise the text. What
 * tells devices apart is mostly at the end.
 */
export function partOf(text: string): string {
  const part = text.slice(-partLength);
  return text.length > partLength + 2 && /^[0-9A-Za-z]+$/.test(part) ? part : text;
}

/**
 * Returns the ids of the devices with this text in their name or hardware id, or undefined if going through the devices after one finds
 * a page of them soon, or if there are too many.
 */
export async function searchDevices(
  tx: Transaction,
  tenantId: string,
  text: string,
  after: string | undefined,
): Promise<readonly string[] | undefined> {
  if (text.length < minimumIndexed) return undefined;
  const pattern = patternOf(text);
  const part = patternOf(partOf(text));
  const frequent = await areFrequent(tx, tenantId, [pattern, part], after);
  if (frequent.pattern) return undefined;
  const { rows } = await tx.query<{ device_id: string }>('SELECT device_search($1, $2, $3) AS device_id', [
    ...[frequent.part ? pattern : part, pattern, maximumFound + 1],
  ]);
  return rows.length > maximumFound ? undefined : rows.map((row) => row.device_id);
}

/** Reports whether patterns are frequent among the devices after one. */
async function areFrequent(
  tx: Transaction,
  tenantId: string,
  [pattern, part]: readonly [string, string],
  after: string | undefined,
): Promise<{ pattern: boolean; part: boolean }> {
  const { rows } = await tx.query<{ pattern: boolean; part: boolean }>(
    `SELECT count(*) FILTER (WHERE name ILIKE $3 OR hardware_id ILIKE $3) >= 3 AS pattern, count(*) >= 3 AS part FROM (
       SELECT name, hardware_id FROM devices WHERE tenant_id = $1 AND device_id > $2 AND deleted_at IS NULL
       ORDER BY device_id LIMIT 300) AS d
     WHERE name ILIKE $4 OR hardware_id ILIKE $4`,
    [tenantId, after ?? nilId, pattern, part],
  );
  return rows[0]!;
}
