// What Kellet publishes on the broker: each kind of event with the schema of its data and an example. The OpenAPI document
// has those that go to webhooks, and docs/events.md has all of them.
import type { JsonObject } from '@bufbuild/protobuf';
import { cloudEvent } from '../platform/events/cloud-event.ts';
import {
  alarmSubject,
  attributesSubject,
  auditSubject,
  callbackSubject,
  confirmationSubject,
  pointsSubject,
  provisionedSubject,
  rolloutDevicesSubject,
  rolloutSubject,
  statusSubject,
} from '../platform/events/subjects.ts';
import { sampleIds } from './sample-ids.ts';

/** Events whose data has one form. */
export interface EventKind {
  /** The subjects, with placeholders in braces, and when an event is published under each. */
  readonly subjects: Readonly<Record<string, string>>;
  /** What the `subject` of the CloudEvent is; empty if the message is no CloudEvent. */
  readonly resource: string;
  /** Whether the stream keeps it; other messages reach only who is connected. */
  readonly stored: boolean;
  /** Whether webhooks and `/ws` get it. */
  readonly forTenants: boolean;
  /** The JSON Schema of the data; references lead into the OpenAPI document. */
  readonly data: JsonObject;
  /** Where one event differs from the others of its kind. */
  readonly notes: readonly string[];
  readonly example: { readonly subject: string; readonly resource: string; readonly data: JsonObject };
}

const tenant = 'acme';
const eventId = '0199f3c2-f0a1-7d33-9e5b-4c8f2a6d1b70';
const exampleTime = Date.UTC(2026, 0, 31, 12);
const { device_id: deviceId, alarm_id: alarmId, rollout_id: rolloutId, batch_id: batchId } = sampleIds;
const txid = '4b2f7c0e9a1d8356f4c7b0e29d6a1835c4f7b2e09d6a8153c7f4b0e2d96a8135';
const blockHash = '00000000000000000a3f5c7e1b9d2f4a6c8e0b1d3f5a7c9e1b2d4f6a8c0e1b3d';

const text = (description: string): JsonObject => ({ type: 'string', description });
const id = (description: string): JsonObject => ({ type: 'string', format: 'uuid', description });
const time = (description: string): JsonObject => ({ type: 'string', format: 'date-time', description });
const count = (description: string): JsonObject => ({ type: 'integer', minimum: 0, description });
const oneOf = (values: readonly string[], description: string): JsonObject => ({
  ...{ type: 'string', enum: [...values], description },
});
const hash = (description: string): JsonObject => ({ type: 'string', pattern: '^[0-9a-f]{64}$', description });
const texts = (description: string): JsonObject => ({
  ...{ type: 'object', additionalProperties: { type: 'string' }, description },
});

/** Returns the schema of an object whose properties are all present, except for those named. */
const object = (properties: Readonly<Record<string, JsonObject>>, optional: readonly string[] = []): JsonObject => ({
  type: 'object',
  properties: { ...properties },
  required: Object.keys(properties).filter((name) => !optional.includes(name)),
});

const component = (name: string): JsonObject => ({ $ref: `#/components/schemas/${name}` });

/** A report of the transaction processor, as Kellet reads it. */
const report = object({
  txid: hash('Id of the transaction.'),
  status: text('Status of the transaction, such as SEEN_ON_NETWORK or MINED; UNKNOWN if Kellet does not know it.'),
  blockHash: text('Hash of the block; empty unless the transaction is or was mined.'),
  blockHeight: count('Height of the block; 0 unless the transaction is or was mined.'),
  merklePath: text('BUMP in hex, or empty.'),
  competingTxids: { type: 'array', items: hash(''), description: 'Transactions that spend the same outputs.' },
  extraInfo: text('Explanation by the processor, or empty.'),
});

/** What every event about a rollout says of it. */
const rolloutFields: Readonly<Record<string, JsonObject>> = {
  rollout_id: id('The rollout.'),
  name: text('Its name.'),
  package_id: id('The package that it delivers.'),
  target_profile_id: id('The profile whose devices it updates.'),
};

const rolloutSubjects: Readonly<Record<string, string>> = {
  started: 'The rollout was created.',
  paused:
    'The rollout pauses by itself, because too many devices failed or a signature is missing: an alert. A pause by an operator, the manifest or a step publishes nothing.',
  resumed: 'A paused rollout was resumed.',
  rolling_back: 'Devices are sent the rollback package.',
  completed: 'The rollout has ended; `outcome` says how.',
};

/** All kinds of events. */
export const eventKinds: readonly EventKind[] = [
  {
    subjects: {
      [provisionedSubject]:
        'A claim has created a device, or made a gateway’s child without a key a device of its own. A repeated claim publishes nothing.',
    },
    resource: 'the device’s id',
    stored: true,
    forTenants: true,
    data: object({
      tenant_id: text('Tenant of the device.'),
      device_id: id('The new device.'),
      name: text('Its name.'),
      hardware_id: text('The hardware id that was claimed.'),
      profile_id: id('Its profile.'),
      template_id: id('The template whose key was used.'),
    }),
    notes: ['It is published after the response to the claim was sent, at the latest a second after the claim.'],
    example: {
      subject: provisionedSubject,
      resource: deviceId,
      data: {
        ...{ tenant_id: tenant, device_id: deviceId, name: 'Weather station 7', hardware_id: 'WS-2041' },
        ...{ profile_id: sampleIds.profile_id, template_id: sampleIds.template_id },
      },
    },
  },
  {
    subjects: { [statusSubject('{tenant}', '{device_id}')]: 'A device went online or offline.' },
    resource: 'the device’s id',
    stored: true,
    forTenants: true,
    data: object(
      {
        device_id: id('The device.'),
        status: oneOf(['online', 'offline'], 'Its status now.'),
        last_seen: time('Its last sign of life; absent if there has been none.'),
      },
      ['last_seen'],
    ),
    notes: [],
    example: {
      subject: statusSubject(tenant, deviceId),
      resource: deviceId,
      data: { device_id: deviceId, status: 'offline', last_seen: '2026-01-31T11:50:00.000Z' },
    },
  },
  {
    subjects: { [attributesSubject('{tenant}', '{device_id}')]: 'Attributes of a device changed.' },
    resource: 'the device’s id',
    stored: true,
    forTenants: true,
    data: object({
      device_id: id('The device.'),
      scope: oneOf(['client', 'server', 'shared'], 'Which of its attributes changed.'),
      changed: { type: 'object', additionalProperties: true, description: 'New values by name.' },
      removed: { type: 'array', items: { type: 'string' }, description: 'Names of attributes that were removed.' },
    }),
    notes: ['A change of several scopes is an event for each.'],
    example: {
      subject: attributesSubject(tenant, deviceId),
      resource: deviceId,
      data: { device_id: deviceId, scope: 'shared', changed: { interval_seconds: 30 }, removed: ['mode'] },
    },
  },
  {
    subjects: {
      [alarmSubject('raised', '{tenant}', '{alarm_id}')]:
        'An alarm was raised by a rule or through the API. A further match counts in the alarm and publishes nothing.',
      [alarmSubject('cleared', '{tenant}', '{alarm_id}')]: 'An alarm was cleared by its rule or through the API.',
    },
    resource: '`alarms/` and the alarm’s id',
    stored: true,
    forTenants: true,
    data: component('Alarm'),
    notes: ['The data is the alarm as `GET /api/v1/alarms/{alarm_id}` returns it.'],
    example: {
      subject: alarmSubject('raised', tenant, alarmId),
      resource: `alarms/${alarmId}`,
      data: {
        ...{ alarm_id: alarmId, device_id: deviceId, rule_id: sampleIds.rule_id, type: 'overheat' },
        ...{ severity: 'critical', status: 'active', count: 1 },
        ...{ first_at: '2026-01-31T12:00:00Z', last_at: '2026-01-31T12:00:00Z' },
      },
    },
  },
  {
    subjects: Object.fromEntries(
      Object.entries(rolloutSubjects).map(([change, when]) => [
        rolloutSubject(change, '{tenant}', '{rollout_id}'),
        when,
      ]),
    ),
    resource: 'the rollout’s id',
    stored: true,
    forTenants: true,
    data: object({
      ...rolloutFields,
      status: oneOf(['active', 'paused', 'rolling_back', 'completed'], 'Its status after the event.'),
      outcome: oneOf(['', 'succeeded', 'rolled_back', 'cancelled'], 'How it ended; empty before.'),
      scheduled: count('Devices that have been scheduled.'),
      succeeded: count('Devices that have reported success.'),
      failed: count('Devices that have reported failure.'),
      timed_out: count('Devices that have not reported in time.'),
      failure_threshold_percent: count('The share of failures beyond which it is paused.'),
      pause_reasons: {
        type: 'array',
        items: {
          ...{ type: 'string' },
          enum: ['operator_pause', 'failure_threshold_exceeded', 'step_approval', 'signature_required'],
        },
        description: 'Why it is paused.',
      },
    }),
    notes: [],
    example: {
      subject: rolloutSubject('paused', tenant, rolloutId),
      resource: rolloutId,
      data: {
        ...{ rollout_id: rolloutId, name: 'Spring update', package_id: sampleIds.package_id },
        ...{ target_profile_id: sampleIds.profile_id, status: 'paused', outcome: '' },
        ...{ scheduled: 100, succeeded: 40, failed: 11, timed_out: 0, failure_threshold_percent: 10 },
        pause_reasons: ['failure_threshold_exceeded'],
      },
    },
  },
  {
    subjects: { [rolloutDevicesSubject('{tenant}', '{rollout_id}')]: 'Devices of the rollout have changed.' },
    resource: 'the rollout’s id',
    stored: true,
    forTenants: true,
    data: object({
      ...rolloutFields,
      devices: {
        type: 'array',
        minItems: 1,
        maxItems: 100,
        items: object({
          device_id: id('The device.'),
          state: oneOf(
            ['sent', 'downloading', 'successful', 'failure', 'timed_out', 'skipped', 'rolled_back'],
            'What became of it: `sent` with each attempt, `downloading` once.',
          ),
          rolling_back: { type: 'boolean', description: 'Whether this is about the rollback package.' },
          attempts: count('How often the command of this package was handed out as a new attempt.'),
          version: text('Version of the package that the device is to run.'),
          firmware_version: text('What the device last reported in this rollout; empty before.'),
          error: text('Why it failed, at most 256 characters; the list of devices has all of it.'),
        }),
        description: 'The devices that have changed.',
      },
    }),
    notes: [
      'Devices that change together share an event ([decision 88](decisions/0088-events-of-many-devices.md)). The events of a rollout are in the order of the changes.',
      'There is no event when a device is scheduled, retried or to be rolled back: its next one is `sent`, when it gets the command. Of several changes in one transaction, the event has the last.',
    ],
    example: {
      subject: rolloutDevicesSubject(tenant, rolloutId),
      resource: rolloutId,
      data: {
        ...{ rollout_id: rolloutId, name: 'Spring update', package_id: sampleIds.package_id },
        ...{ target_profile_id: sampleIds.profile_id },
        devices: [
          {
            ...{ device_id: deviceId, state: 'successful', rolling_back: false, attempts: 1 },
            ...{ version: '1.1.0', firmware_version: '1.1.0', error: '' },
          },
        ],
      },
    },
  },
  {
    subjects: { [auditSubject('{tenant}', '{event_id}')]: 'An action was recorded in the audit log.' },
    resource: '`audit-events`',
    stored: true,
    forTenants: true,
    data: component('AuditEvent'),
    notes: [
      'The data is the event as `GET /api/v1/audit-events` returns it. The events of a tenant are published in the order of the log.',
      'The tenant of the platform’s own log is `_platform`, both in the subject and in `tenantid`.',
      'Only a caller with every scope can make a webhook that gets them, or change one that gets them or still keeps deliveries of them; on `/ws` only users with every scope do.',
      'Webhooks that listed `*` or `audit.event` before this was checked keep receiving them: review them after an upgrade.',
    ],
    example: {
      subject: auditSubject(tenant, eventId),
      resource: 'audit-events',
      data: {
        ...{ event_id: eventId, time: '2026-01-31T12:00:00Z' },
        actor: { kind: 'user', id: sampleIds.user_id, name: 'admin@acme.example' },
        action: 'DeviceRegistryService/DeleteDevice',
        resource: { kind: 'device', id: deviceId },
        ...{ result: 'OK', address: '192.0.2.7', user_agent: 'curl/8.5.0', request_id: batchId, sequence: 1041 },
        ...{ previous_hash: blockHash, hash: txid },
      },
    },
  },
  {
    subjects: {
      [pointsSubject('{tenant}', '{device_id}')]:
        'Points of a device were stored, if `KELLET_PUBLISH_POINTS` names the tenant.',
    },
    resource: 'the device’s id',
    stored: false,
    forTenants: false,
    data: object({
      device_id: id('The device.'),
      points: {
        type: 'array',
        description: 'The points, in the order in which they were accepted.',
        items: object({
          device_id: id('The device.'),
          timestamp: time('Time of the reading, with up to nine decimal places.'),
          numeric_values: {
            ...{ type: 'object', additionalProperties: { type: 'number' }, description: 'Numeric values by key.' },
          },
          string_values: texts('String values by key.'),
          data_hash: hash('Leaf hash of the point, by which `GET /api/v1/verify/hash/{data_hash}` finds its proof.'),
          device_name: text('Name of the device.'),
          device_type: text('Type of its profile.'),
          tags: texts('Its tags, with the defaults of tenant and profile.'),
        }),
      },
    }),
    notes: [
      'The points of one device that were stored together are one message, or several if it would be too large.',
      '`kellet-apiserver publish-points` changes at run time whose points are published ([operations](operations.md#points-on-nats)).',
    ],
    example: {
      subject: pointsSubject(tenant, deviceId),
      resource: deviceId,
      data: {
        device_id: deviceId,
        points: [
          {
            ...{ device_id: deviceId, timestamp: '2026-01-31T12:00:00Z' },
            ...{ numeric_values: { temperature: 4.5 }, string_values: { state: 'calm' }, data_hash: txid },
            ...{ device_name: 'Weather station 7', device_type: 'weather-station', tags: { site: 'harbour' } },
          },
        ],
      },
    },
  },
  {
    subjects: {
      [callbackSubject]: 'The transaction processor has called back with a valid signature. For Kellet’s own use.',
    },
    resource: '',
    stored: true,
    forTenants: false,
    data: {
      description: 'One report of the processor, or several as `{"count", "callbacks": []}`.',
      ...{ type: 'object', additionalProperties: true },
    },
    notes: ['The message is the body of the callback, byte for byte, and no CloudEvent.'],
    example: {
      subject: callbackSubject,
      resource: '',
      data: { txid, txStatus: 'SEEN_ON_NETWORK', timestamp: '2026-01-31T12:00:00Z' },
    },
  },
  {
    subjects: {
      [confirmationSubject]: 'A callback reports on a transaction that Kellet has sent. For Kellet’s own use.',
    },
    resource: 'the transaction’s id',
    stored: true,
    forTenants: false,
    data: object({ batch_id: id('The anchor batch of the transaction.'), report }),
    notes: [
      'Its `id` is made from the callback: `arc-callback-`, its sequence in the stream, `-`, and the number of the report in it. A confirmation is not a proof: Kellet checks the Merkle path against the block header before a batch counts as anchored.',
    ],
    example: {
      subject: confirmationSubject,
      resource: txid,
      data: {
        batch_id: batchId,
        report: {
          ...{ txid, status: 'MINED', blockHash, blockHeight: 850_000, merklePath: 'fe…' },
          ...{ competingTxids: [], extraInfo: '' },
        },
      },
    },
  },
];

/** Returns the example of a kind as it is sent. */
export function exampleOf({ example: { subject: type, resource: subject, data } }: EventKind): JsonObject {
  if (subject === '') return data;
  const id = type === confirmationSubject ? 'arc-callback-4711-0' : eventId;
  return { ...cloudEvent({ id, type, subject, tenantId: tenant, at: exampleTime }), data };
}

/** Returns the schema of the messages of a kind. */
export const messageSchema = ({ resource, data }: EventKind): JsonObject =>
  resource === '' ? data : envelopeSchema(data);

/** Returns the schema of a CloudEvent with such data. */
const envelopeSchema = (data: JsonObject): JsonObject =>
  object(
    {
      specversion: { const: '1.0' },
      id: text('The same if an event is sent again.'),
      source: { const: '/kellet' },
      type: text('The subject on the broker.'),
      subject: text('The resource that the event is about.'),
      time: time('When it happened.'),
      datacontenttype: { const: 'application/json' },
      tenantid: text('The tenant.'),
      traceparent: text('W3C Trace Context of the call that caused it, if there was one.'),
      tracestate: text('Further state of that trace.'),
      data,
    },
    ['traceparent', 'tracestate'],
  );

/** Returns an event's subject without tenant and resource, by which webhooks name it. */
export const nameOf = (subject: string): string => subject.split('.{')[0]!;

/** Returns `webhooks` of the document: the events that Kellet sends to webhooks, by name. */
export function webhookEvents(): Record<string, JsonObject> {
  return Object.fromEntries(
    eventKinds
      .filter(({ forTenants }) => forTenants)
      .flatMap((kind) =>
        Object.entries(kind.subjects).map(([subject, when]) => [nameOf(subject), post(kind, subject, when)]),
      ),
  );
}

const post = (kind: EventKind, subject: string, when: string): JsonObject => ({
  post: {
    tags: ['webhooks'],
    summary: nameOf(subject),
    description: `${when} \`X-Kellet-Signature\` is the HMAC-SHA256 of the body with the webhook’s secret (docs/fleets.md).`,
    security: [],
    requestBody: {
      required: true,
      content: { 'application/cloudevents+json': { schema: envelopeSchema(kind.data) } },
    },
    responses: { '2XX': { description: 'The event was accepted. After any other response it is sent again.' } },
  },
});
