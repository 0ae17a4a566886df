// Publishes committed points on NATS for the tenants that enabled it. Plain messages, best effort.
import type { Broker } from '../../platform/events/broker.ts';
import { cloudEvent } from '../../platform/events/cloud-event.ts';
import { pointsSubject } from '../../platform/events/subjects.ts';
import { newId } from '../../platform/ids.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { LiveRoom } from './live.ts';
import { joinTexts, maxCharacters } from './live-message.ts';

/**
 * Publishes the points of one device from a flush: as one message, or several if it would exceed the broker's limit.
 */
export function publishPoints(
  broker: Broker,
  tenantId: string,
  deviceId: string,
  points: readonly AcceptedPoint[],
  { room, now: nowMilliseconds }: { readonly room: LiveRoom; readonly now: number },
): void {
  const subject = pointsSubject(tenantId, deviceId);
  for (const json of joinTexts(room.textsOf(points), maxCharacters, ',')) {
    const envelope = cloudEvent({ id: newId(), type: subject, subject: deviceId, tenantId, at: nowMilliseconds });
    const data = `{"device_id":"${deviceId}","points":[${json}]}`;
    broker.publishLive(subject, Buffer.from(`${JSON.stringify(envelope).slice(0, -1)},"data":${data}}`));
  }
}
