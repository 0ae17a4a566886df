// Passes raised and cleared alarms on to the sockets of this process. They arrive from the broker, so it does not matter
// which process raised them; while the broker is away, none arrive.
import { FairSlots } from '../platform/concurrency/fair-slots.ts';
import type { Broker } from '../platform/events/broker.ts';
import { alarmSubjects } from '../platform/events/subjects.ts';
import type { Visibility } from '../platform/visibility.ts';
import { AlarmAudience, type AlarmListener, type AudienceParts } from './alarm-audience.ts';

/** The alarms of all tenants, each for its own listeners. */
export class AlarmFeed {
  /** By tenant, and by what they see of it. */
  private readonly audiences = new Map<string, Map<string, AlarmAudience>>();
  private readonly parts: AudienceParts;

  constructor(broker: Pick<Broker, 'whenConnected'>, parts: Omit<AudienceParts, 'slots'>) {
    this.parts = { ...parts, slots: new FairSlots({ total: 4, perOwner: 2, waitingPerOwner: Infinity }) };
    broker.whenConnected((connection) => {
      connection.subscribe(alarmSubjects, {
        callback: (error, { subject, data }) => {
          if (!error) this.deliver(subject, data);
        },
      });
    });
  }

  /** Shows a listener the alarms of the tenant that are visible to it, until the returned function is called. */
  subscribe(tenantId: string, visibility: Visibility, listener: AlarmListener): () => void {
    const ofTenant = this.audiences.get(tenantId) ?? new Map<string, AlarmAudience>();
    this.audiences.set(tenantId, ofTenant);
    const key = JSON.stringify([visibility.customerId, visibility.deviceGroupIds]);
    const audience = ofTenant.get(key) ?? new AlarmAudience(this.parts, tenantId, visibility);
    ofTenant.set(key, audience);
    audience.listeners.add(listener);
    return () => {
      audience.listeners.delete(listener);
      if (audience.listeners.size > 0 || ofTenant.get(key) !== audience) return;
      ofTenant.delete(key);
      if (ofTenant.size === 0 && this.audiences.get(tenantId) === ofTenant) this.audiences.delete(tenantId);
    };
  }

  private deliver(subject: string, data: Uint8Array): void {
    const [, event = '', tenantId = '', alarmId = ''] = subject.split('.');
    const audiences = this.audiences.get(tenantId);
    if (!audiences) return;
    const alarm = alarmOf(data);
    if (alarm === undefined) return;
    const message = JSON.stringify({ channel: 'alarms', event, alarm });
    const deviceId = deviceOf(alarm);
    for (const audience of audiences.values()) audience.take({ alarmId, message, deviceId });
  }
}

/** Returns the data of an event, or undefined if it is not one of ours. */
function alarmOf(data: Uint8Array): unknown {
  try {
    return (JSON.parse(Buffer.from(data).toString()) as { data?: unknown }).data;
  } catch {
    return undefined;
  }
}

/** Returns the id of an alarm's device, empty if it has none. */
function deviceOf(alarm: unknown): string {
  const { device_id: deviceId } = alarm as { device_id?: unknown };
  return typeof deviceId === 'string' ? deviceId : '';
}
