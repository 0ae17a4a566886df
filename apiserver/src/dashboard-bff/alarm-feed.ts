// Passes raised and cleared alarms on to the sockets of this process. They arrive from the broker, so it does not matter
// which process raised them; while the broker is away, none arrive.
import type { Broker } from '../platform/events/broker.ts';
import { alarmSubjects } from '../platform/events/subjects.ts';

/** Receives a message for clients, and the ids of its alarm and of the alarm's device. */
export type AlarmListener = (alarmId: string, message: string, deviceId: string) => void;

/** The alarms of all tenants, each for its own listeners. */
export class AlarmFeed {
  private readonly listeners = new Map<string, Set<AlarmListener>>();

  constructor(broker: Pick<Broker, 'whenConnected'>) {
    broker.whenConnected((connection) => {
      connection.subscribe(alarmSubjects, {
        callback: (error, { subject, data }) => {
          if (!error) this.deliver(subject, data);
        },
      });
    });
  }

  /** Calls the listener for alarms of the tenant until the returned function is called. */
  subscribe(tenantId: string, listener: AlarmListener): () => void {
    const ofTenant = this.listeners.get(tenantId) ?? new Set();
    this.listeners.set(tenantId, ofTenant.add(listener));
    return () => {
      ofTenant.delete(listener);
      if (ofTenant.size === 0 && this.listeners.get(tenantId) === ofTenant) this.listeners.delete(tenantId);
    };
  }

  private deliver(subject: string, data: Uint8Array): void {
    const [, event = '', tenantId = '', alarmId = ''] = subject.split('.');
    const listeners = this.listeners.get(tenantId);
    if (!listeners) return;
    const alarm = alarmOf(data);
    if (alarm === undefined) return;
    const message = JSON.stringify({ channel: 'alarms', event, alarm });
    const deviceId = deviceOf(alarm);
    for (const listener of listeners) listener(alarmId, message, deviceId);
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
