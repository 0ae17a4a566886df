// The command kellet-apiserver events: lists the events that the broker refused, resends or drops them.
import type { Database } from '../database/database.ts';
import { isId } from '../ids.ts';

export const eventsUsage = `usage: kellet-apiserver events list
       kellet-apiserver events show EVENT_ID…
       kellet-apiserver events resend EVENT_ID… | --all
       kellet-apiserver events drop EVENT_ID… | --all

  On events that were set aside because they cannot be published:
  list    prints them
  show    prints them whole, as CloudEvents
  resend  publishes them again
  drop    deletes them`;

/** Dependencies of the command. */
export interface CommandParts {
  readonly database: Database;
  readonly write: (line: string) => void;
}

/** Runs `kellet-apiserver events …` and returns the exit code: 1 if no such event is set aside, 2 for bad usage. */
export async function runEventsCommand(args: readonly string[], { database, write }: CommandParts): Promise<number> {
  const [verb, ...ids] = args;
  const isAll = ids.length === 1 && ids[0] === '--all';
  if (verb === 'list' && ids.length === 0) return list({ database, write });
  const takesAll = verb === 'resend' || verb === 'drop';
  if (!(takesAll || verb === 'show') || ids.length === 0 || !(ids.every(isId) || (takesAll && isAll))) {
    write(eventsUsage);
    return 2;
  }
  const wanted = isAll ? null : ids;
  const chosen = '($1::uuid[] IS NULL OR event_id = ANY($1))';
  if (verb === 'show') {
    const { rows } = await database.system((tx) =>
      tx.query<{ payload: string }>(`SELECT payload FROM outbox_set_aside WHERE ${chosen}`, [wanted]),
    );
    for (const { payload } of rows) write(payload);
    return rows.length > 0 ? 0 : 1;
  }
  const count = await database.system(async (tx) => {
    if (verb === 'drop') return (await tx.query(`DELETE FROM outbox_set_aside WHERE ${chosen}`, [wanted])).rowCount;
    const moved = await tx.query(
      `WITH chosen AS (DELETE FROM outbox_set_aside WHERE ${chosen} RETURNING *)
       INSERT INTO outbox (tenant_id, event_id, subject, payload)
       SELECT tenant_id, event_id, subject, payload FROM chosen ORDER BY set_aside_at, event_id`,
      [wanted],
    );
    return moved.rowCount;
  });
  write(verb === 'drop' ? `${count} dropped` : `${count} to be sent again`);
  return count === 0 && !isAll ? 1 : 0;
}

/** Writes one line of JSON per event, oldest first. */
async function list({ database, write }: CommandParts): Promise<number> {
  const { rows } = await database.system((tx) =>
    tx.query(
      `SELECT event_id, tenant_id, subject, octet_length(payload) AS bytes, reason, set_aside_at
       FROM outbox_set_aside ORDER BY set_aside_at, subject LIMIT 10000`,
    ),
  );
  for (const row of rows) write(JSON.stringify(row));
  return 0;
}
