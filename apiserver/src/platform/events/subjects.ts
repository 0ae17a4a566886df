// The stream, subjects and durable consumers of NATS, one list. Consumers outside of Kellet know the subjects, so they
// never change.

/** The JetStream stream that stores every event except live telemetry. */
export const streamName = 'KELLET';

/** Callbacks of the transaction processor, byte for byte. */
export const callbackSubject = 'arc.callbacks';

/** What the processor reports about a transaction of Kellet. */
export const confirmationSubject = 'anchor.confirmations';

/** Subjects of the stream. */
export const streamSubjects = ['device.>', 'profile.>', 'alarm.>', 'audit.>', callbackSubject, confirmationSubject];

/** Durable consumers of the stream. */
export const callbackConsumer = 'chain-anchor-callbacks';
export const confirmationConsumer = 'chain-anchor-confirmations';

/** A device was created by a claim. */
export const provisionedSubject = 'device.provisioned';

/** A device went online or offline. */
export const statusSubject = (tenantId: string, deviceId: string): string => `device.status.${tenantId}.${deviceId}`;

/** Attributes of a device changed. */
export const attributesSubject = (tenantId: string, deviceId: string): string =>
  `device.attributes.${tenantId}.${deviceId}`;

/** A rollout has started, paused, … */
export const rolloutSubject = (event: string, tenantId: string, rolloutId: string): string =>
  `profile.ota.rollout.${event}.${tenantId}.${rolloutId}`;

/** Devices of a rollout have changed. */
export const rolloutDevicesSubject = (tenantId: string, rolloutId: string): string =>
  `device.rollout.${tenantId}.${rolloutId}`;

/** An alarm was raised or cleared. */
export const alarmSubject = (change: 'raised' | 'cleared', tenantId: string, alarmId: string): string =>
  `alarm.${change}.${tenantId}.${alarmId}`;

/** The type of the audit log's events, and how their subjects begin. */
export const auditEventType = 'audit.event';

/** An event of the audit log. */
export const auditSubject = (tenantId: string, eventId: string): string => `${auditEventType}.${tenantId}.${eventId}`;

/** Reports whether a subject is that of an event of the audit log. */
export const isAuditSubject = (subject: string): boolean => subject.startsWith(`${auditEventType}.`);

/** All stored subjects with this tenant. */
export const tenantSubjects = (tenantId: string): string[] =>
  ['*.*', '*.*.*', '*.*.*.*'].map((event) => `${event}.${tenantId}.*`);

/** The subjects of events without tenant and resource, by which webhooks name them. */
export const eventNames = [
  provisionedSubject,
  ...['device.status', 'device.attributes', 'device.rollout', 'alarm.raised', 'alarm.cleared', auditEventType],
  ...['started', 'paused', 'resumed', 'rolling_back', 'completed'].map((event) => `profile.ota.rollout.${event}`),
];

/** The subjects of all alarms. */
export const alarmSubjects = 'alarm.*.*.*';

/** Committed points of a device; not stored. */
export const pointsSubject = (tenantId: string, deviceId: string): string => `telemetry.points.${tenantId}.${deviceId}`;

/** Between the processes, not stored: which devices a process watches, points for a process, and a request to announce. */
export const liveInterestSubject = (process: string): string => `kellet.live.interest.${process}`;
export const livePointsSubject = (process: string): string => `kellet.live.points.${process}`;
export const liveAskSubject = 'kellet.live.ask';
