// Notifies the sessions of limited users of changes to what they may see: devices assigned to another customer, and
// devices that enter or leave device groups.
import type { Session } from './session.ts';

const retryMilliseconds = 1000;

/** The sessions to notify. */
export class DeviceChanges {
  private readonly sessions = new Map<string, Set<Session>>();
  private readonly timers = new Set<NodeJS.Timeout>();

  /** Notifies a session of a tenant until the returned function is called. */
  follow(tenantId: string, session: Session): () => void {
    const ofTenant = this.sessions.get(tenantId) ?? new Set();
    this.sessions.set(tenantId, ofTenant.add(session));
    return () => {
      if (ofTenant.delete(session) && ofTenant.size === 0) this.sessions.delete(tenantId);
    };
  }

  /** Takes a changed device, `tenant/device`; undefined means that changes of any device may have been missed. */
  note(device: string | undefined): void {
    if (device === undefined) {
      for (const ofTenant of this.sessions.values()) for (const session of ofTenant) this.review(session);
      return;
    }
    const at = device.indexOf('/');
    for (const session of this.sessions.get(device.slice(0, at)) ?? []) this.review(session, [device.slice(at + 1)]);
  }

  /** Takes a changed device group, `tenant/group`; undefined means that changes of any group may have been missed. */
  noteGroup(group: string | undefined): void {
    if (group === undefined) return this.note(undefined);
    for (const session of this.sessions.get(group.slice(0, group.indexOf('/'))) ?? []) {
      if (session.dependsOn(group)) this.review(session);
    }
  }

  /** Stops notifying. */
  close(): void {
    for (const timer of this.timers) clearTimeout(timer);
    this.sessions.clear();
  }

  /** Repeated until it succeeds: a device must not be shown on because the database was unavailable. */
  private review(session: Session, deviceIds?: readonly string[]): void {
    session.reviewDevices(deviceIds).catch(() => {
      const timer = setTimeout(() => {
        this.timers.delete(timer);
        this.review(session, deviceIds);
      }, retryMilliseconds);
      this.timers.add(timer);
    });
  }
}
