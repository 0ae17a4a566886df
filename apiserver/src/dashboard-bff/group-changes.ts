// Notifies sessions of changes to the groups that they watch: at most every two seconds, and with one query per group
// however many sessions watch it.
import type { Logger } from '../platform/observability/logger.ts';
import type { GroupMembers, Session } from './session.ts';

const coalescingMilliseconds = 2000;

type Watching = Pick<Session, 'refreshGroups'>;

/** Collects changed groups and refreshes the sessions that watch them. */
export class GroupChanges {
  private readonly members: GroupMembers;
  private readonly logger: Logger;
  private readonly sessions = new Set<Watching>();
  private readonly changed = new Set<string>();
  private hasMissed = false;
  private hasFailed = false;
  private timer: NodeJS.Timeout | undefined;

  constructor(members: GroupMembers, logger: Logger) {
    this.members = members;
    this.logger = logger;
  }

  /** Refreshes a session until the returned function is called. */
  follow(session: Watching): () => void {
    this.sessions.add(session);
    return () => this.sessions.delete(session);
  }

  /** Records a change of the group `tenant/group`; undefined means that changes of any group may have been missed. */
  note(group: string | undefined): void {
    if (this.sessions.size === 0) return;
    if (group === undefined) this.hasMissed = true;
    else this.changed.add(group);
    this.timer ??= setTimeout(() => void this.refresh(), coalescingMilliseconds);
  }

  /** Stops refreshing. */
  close(): void {
    clearTimeout(this.timer);
    this.sessions.clear();
  }

  private async refresh(): Promise<void> {
    const changed = this.hasMissed ? undefined : new Set(this.changed);
    this.changed.clear();
    this.hasMissed = false;
    const reads = new Map<string, ReturnType<GroupMembers>>();
    const failures: unknown[] = [];
    const read: GroupMembers = (tenantId, groupId) => {
      const key = `${tenantId}/${groupId}`;
      const known = reads.get(key);
      if (known) return known;
      const reading = this.members(tenantId, groupId);
      reads.set(key, reading);
      // Read again: a device that has left must not be shown on because the database was unavailable.
      reading.catch((error: unknown) => {
        failures.push(error);
        this.changed.add(key);
      });
      return reading;
    };
    await Promise.all([...this.sessions].map((session) => session.refreshGroups(changed, read)));
    if (failures.length > 0 && !this.hasFailed)
      this.logger.warn({ err: failures[0] }, 'the members of watched groups could not be read, trying again');
    this.hasFailed = failures.length > 0;
    this.timer = undefined;
    if (this.hasMissed) this.note(undefined);
    for (const group of this.changed) this.note(group);
  }
}
