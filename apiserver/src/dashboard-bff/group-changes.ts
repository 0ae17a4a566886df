// Notifies sessions of changes to the groups that they watch: at most every two seconds, and with one query per group
// however many sessions watch it. Each tenant by itself, a group at a time, so that none waits for another's, and the members of few
// groups are in memory.
import { setImmediate } from 'node:timers/promises';
import type { Logger } from '../platform/observability/logger.ts';
import type { GroupMembers, Session } from './session.ts';

const coalescingMilliseconds = 2000;

type Watching = Pick<Session, 'watchedGroups' | 'changeGroup' | 'update'>;

/** The sessions of a tenant, and what they have to be told. */
interface OfTenant {
  readonly sessions: Set<Watching>;
  readonly changed: Set<string>;
  hasMissed: boolean;
  hasFailed: boolean;
  /** Set while a refresh is planned or under way. */
  timer: NodeJS.Timeout | undefined;
}

/** Collects changed groups and refreshes the sessions that watch them. */
export class GroupChanges {
  private readonly members: GroupMembers;
  private readonly logger: Logger;
  private readonly tenants = new Map<string, OfTenant>();

  constructor(members: GroupMembers, logger: Logger) {
    this.members = members;
    this.logger = logger;
  }

  /** Refreshes a session of a tenant until the returned function is called. */
  follow(tenantId: string, session: Watching): () => void {
    const ofTenant = this.tenants.get(tenantId) ?? {
      ...{ sessions: new Set(), changed: new Set(), hasMissed: false, hasFailed: false, timer: undefined },
    };
    this.tenants.set(tenantId, ofTenant);
    ofTenant.sessions.add(session);
    return () => {
      ofTenant.sessions.delete(session);
      if (ofTenant.sessions.size > 0 || this.tenants.get(tenantId) !== ofTenant) return;
      clearTimeout(ofTenant.timer);
      this.tenants.delete(tenantId);
    };
  }

  /** Records a change of the group `tenant/group`; undefined means that changes of any group may have been missed. */
  note(group: string | undefined): void {
    if (group === undefined) {
      for (const [tenantId, ofTenant] of this.tenants) {
        ofTenant.hasMissed = true;
        this.plan(tenantId, ofTenant);
      }
      return;
    }
    const at = group.indexOf('/');
    const tenantId = group.slice(0, at);
    const ofTenant = this.tenants.get(tenantId);
    if (!ofTenant) return;
    ofTenant.changed.add(group.slice(at + 1));
    this.plan(tenantId, ofTenant);
  }

  /** Stops refreshing. */
  close(): void {
    for (const { timer, sessions } of this.tenants.values()) {
      clearTimeout(timer);
      sessions.clear();
    }
    this.tenants.clear();
  }

  private plan(tenantId: string, ofTenant: OfTenant): void {
    ofTenant.timer ??= setTimeout(() => void this.refresh(tenantId, ofTenant), coalescingMilliseconds);
  }

  private async refresh(tenantId: string, ofTenant: OfTenant): Promise<void> {
    const { sessions, changed } = ofTenant;
    const isChanged = ofTenant.hasMissed ? () => true : (groupId: string) => due.has(groupId);
    const due = new Set(changed);
    changed.clear();
    ofTenant.hasMissed = false;
    let failure: unknown;
    const watched = new Set([...sessions].flatMap((session) => [...session.watchedGroups].filter(isChanged)));
    const refreshed = new Set<Watching>();
    for (const groupId of watched) {
      try {
        const members = (await this.members(tenantId, groupId)) ?? [];
        for (const session of sessions) if (session.changeGroup(groupId, members)) refreshed.add(session);
      } catch (error) {
        failure = error;
        // Read again: a device that has left must not be shown on because the database was unavailable.
        changed.add(groupId);
      }
    }
    for (const session of refreshed) {
      session.update();
      await setImmediate();
    }
    if (failure !== undefined && !ofTenant.hasFailed)
      this.logger.warn({ err: failure }, 'the members of watched groups could not be read, trying again');
    ofTenant.hasFailed = failure !== undefined;
    ofTenant.timer = undefined;
    if (sessions.size > 0 && (ofTenant.hasMissed || changed.size > 0)) this.plan(tenantId, ofTenant);
  }
}
