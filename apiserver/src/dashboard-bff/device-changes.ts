// Notifies the sessions of limited users of changes to what they may see: devices assigned to another customer, and
// devices that enter or leave device groups. A session is reviewed once at a time, however much changes meanwhile.
import { sleep } from '../platform/clock.ts';
import type { Session } from './session.ts';

const retryMilliseconds = 1000;

type Reviewed = Pick<Session, 'reviewDevices' | 'dependsOn' | 'holds'>;

/** The devices of a session that have to be reviewed; undefined: all. */
type Due = Set<string> | undefined;

/** The sessions to notify. */
export class DeviceChanges {
  private readonly sessions = new Map<string, Set<Reviewed>>();
  private readonly due = new Map<Reviewed, Due>();
  private readonly running = new Set<Reviewed>();
  private readonly closing = new AbortController();

  /** Notifies a session of a tenant until the returned function is called. */
  follow(tenantId: string, session: Reviewed): () => void {
    const ofTenant = this.sessions.get(tenantId) ?? new Set();
    this.sessions.set(tenantId, ofTenant.add(session));
    return () => {
      this.due.delete(session);
      if (ofTenant.delete(session) && ofTenant.size === 0) this.sessions.delete(tenantId);
    };
  }

  /** Takes a changed device, `tenant/device`; undefined means that changes of any device may have been missed. */
  note(device: string | undefined): void {
    if (device === undefined) {
      for (const [tenantId, ofTenant] of this.sessions) {
        for (const session of ofTenant) this.review(tenantId, session, undefined);
      }
      return;
    }
    const at = device.indexOf('/');
    const [tenantId, deviceId] = [device.slice(0, at), device.slice(at + 1)];
    for (const session of this.sessions.get(tenantId) ?? []) {
      if (session.holds(deviceId)) this.review(tenantId, session, new Set([deviceId]));
    }
  }

  /** Takes a changed device group, `tenant/group`; undefined means that changes of any group may have been missed. */
  noteGroup(group: string | undefined): void {
    if (group === undefined) return this.note(undefined);
    const tenantId = group.slice(0, group.indexOf('/'));
    for (const session of this.sessions.get(tenantId) ?? []) {
      if (session.dependsOn(group)) this.review(tenantId, session, undefined);
    }
  }

  /** Stops notifying. */
  close(): void {
    this.closing.abort();
    this.sessions.clear();
    this.due.clear();
  }

  private review(tenantId: string, session: Reviewed, devices: Due): void {
    const before = this.due.get(session);
    if (devices === undefined || !this.due.has(session)) this.due.set(session, devices);
    // All are due already if none are named.
    else for (const id of devices) before?.add(id);
    if (!this.running.has(session)) void this.work(tenantId, session);
  }

  /** Reviews a session until nothing is due, again if it fails: a device must not be shown on because the database was unavailable. */
  private async work(tenantId: string, session: Reviewed): Promise<void> {
    this.running.add(session);
    while (this.due.has(session)) {
      const devices = this.due.get(session);
      this.due.delete(session);
      try {
        await session.reviewDevices(devices && [...devices]);
      } catch {
        if (this.sessions.get(tenantId)?.has(session)) this.review(tenantId, session, devices);
        await sleep(retryMilliseconds, this.closing.signal);
      }
    }
    this.running.delete(session);
  }
}
