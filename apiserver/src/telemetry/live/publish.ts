// Publishes committed points on NATS for the tenants that enabled it. Plain messages, best effort.
import type { Broker } from '../../platform/events/broker.ts';
import { newId } from '../../platform/ids.ts';
import { joinTexts, maxCharacters } from './live-message.ts';
import { livePointJson } from './live.ts';
import type { AcceptedPoint } from '../points/validate.ts';

/**
 * Publishes the points of one device from a flush: as one message, or several if it would exceed the broker's limit.
 */
export function publishPoints(
  broker: Broker,
  tenantId: string,
  deviceId: string,
  points: readonly AcceptedPoint[],
  nowMilliseconds: number,
): void {
  const subject = `telemetry.points.${tenantId}.${deviceId}`;
  for (const json of joinTexts(points.map(livePointJson), maxCharacters, ',')) {
    const envelope = {
      specversion: '1.0',
      id: newId(),
      source: '/kellet',
      type: subject,
      subject: deviceId,
      time: new Date(nowMilliseconds).toISOString(),
      datacontenttype: 'application/json',
      tenantid: tenantId,
    };
    const data = `{"device_id":"${deviceId}","points":[${json}]}`;
    broker.publishLive(subject, Buffer.from(`${JSON.stringify(envelope).slice(0, -1)},"data":${data}}`));
  }
}
