import { fromJson, type JsonObject } from '@bufbuild/protobuf';
import { ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { expect } from 'chai';
import { profileProblem } from './profile-rules.ts';

describe('profile rules', () => {
  const schemaKey = (key: JsonObject): JsonObject => ({ telemetry_schema: { keys: { temperature: key } } });
  const window = (overrides: JsonObject): JsonObject => ({
    ota_policy: { window: { start: '22:00', end: '04:00', ...overrides } },
  });
  const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index}`, 'v']));

  const cases: [profile: JsonObject, problem: string | undefined][] = [
    [{}, undefined],
    [{ type: 'x'.repeat(128) }, undefined],
    [{ type: 'x'.repeat(129) }, 'type must have at most 128 characters'],
    [{ type: 'a\0b' }, 'type must not contain NUL'],
    [{ default_tags: many(64) }, undefined],
    [{ default_tags: many(65) }, 'default_tags must have at most 64 entries'],
    [{ default_tags: { '': 'v' } }, 'default_tags must have keys of 1 to 128 characters without NUL'],
    [{ default_tags: { site: 'x'.repeat(257) } }, 'default_tags[site] must have at most 256 characters'],
    [{ anchoring_policy: { mode: 'per_event' } }, undefined],
    [{ anchoring_policy: {} }, undefined],
    [{ anchoring_policy: { mode: 'mode_unspecified' } }, 'anchoring_policy.mode must be merkle, per_event or chain'],
    [{ anchoring_policy: { mode: 9 } }, 'anchoring_policy.mode must be merkle, per_event or chain'],
    [{ offline_after_seconds: 2_592_000 }, undefined],
    [{ offline_after_seconds: 2_592_001 }, 'offline_after_seconds must be at most 2592000'],
    [schemaKey({ type: 'number', min: -40, max: 85, unit: '°C', required: true }), undefined],
    [schemaKey({ type: 'string', enum: ['on', 'off'], max_length: 8 }), undefined],
    [schemaKey({}), 'telemetry_schema.keys[temperature].type must be number or string'],
    [schemaKey({ type: 7 }), 'telemetry_schema.keys[temperature].type must be number or string'],
    [schemaKey({ type: 'number', min: 2, max: 1 }), 'telemetry_schema.keys[temperature].min must not be above max'],
    [schemaKey({ type: 'number', min: 1, max: 1 }), undefined],
    [schemaKey({ type: 'number', min: 'NaN' }), 'telemetry_schema.keys[temperature].min must be a finite number'],
    [schemaKey({ type: 'number', max: 'Infinity' }), 'telemetry_schema.keys[temperature].max must be a finite number'],
    [schemaKey({ type: 'number', enum: ['1'] }), 'telemetry_schema.keys[temperature].enum is only for a string'],
    [
      schemaKey({ type: 'number', max_length: 1 }),
      'telemetry_schema.keys[temperature].max_length is only for a string',
    ],
    [schemaKey({ type: 'string', min: 0 }), 'telemetry_schema.keys[temperature].min is only for a number'],
    [schemaKey({ type: 'string', unit: 'm' }), 'telemetry_schema.keys[temperature].unit is only for a number'],
    [schemaKey({ type: 'string', max_length: 0 }), 'telemetry_schema.keys[temperature].max_length must be 1 to 4096'],
    [
      schemaKey({ type: 'string', max_length: 4097 }),
      'telemetry_schema.keys[temperature].max_length must be 1 to 4096',
    ],
    [
      schemaKey({ type: 'string', enum: ['a', 'a'] }),
      'telemetry_schema.keys[temperature].enum must not repeat a value',
    ],
    [{ telemetry_schema: { additional_keys: 'reject' } }, undefined],
    [{ telemetry_schema: { additional_keys: 5 } }, 'telemetry_schema.additional_keys must be allow or reject'],
    [
      { telemetry_schema: { keys: { ['x'.repeat(129)]: { type: 'number' } } } },
      'telemetry_schema.keys must have keys of 1 to 128 characters without NUL',
    ],
    [{ ota_policy: { max_attempts: 101 } }, 'ota_policy.max_attempts must be at most 100'],
    [
      { ota_policy: { device_timeout_seconds: 2_592_001 } },
      'ota_policy.device_timeout_seconds must be at most 2592000',
    ],
    [window({}), undefined],
    [window({ days: ['mon', 'sun'], time_zone: 'Europe/Berlin' }), undefined],
    [window({ time_zone: 'UTC' }), undefined],
    [window({ start: '24:00' }), 'ota_policy.window.start must be HH:MM'],
    [window({ start: '7:00' }), 'ota_policy.window.start must be HH:MM'],
    [window({ end: '07:60' }), 'ota_policy.window.end must be HH:MM'],
    [window({ end: '' }), 'ota_policy.window.end must be HH:MM'],
    [window({ end: '22:00' }), 'ota_policy.window.end must differ from start'],
    [window({ days: ['Mon'] }), 'ota_policy.window.days must be of mon, tue, wed, thu, fri, sat, sun'],
    [window({ days: ['mon', 'mon'] }), 'ota_policy.window.days must not repeat a day'],
    [
      window({ time_zone: 'Mars/Olympus' }),
      'ota_policy.window.time_zone must be an IANA time zone such as Europe/Berlin',
    ],
    [window({ time_zone: '+02:00' }), 'ota_policy.window.time_zone must be an IANA time zone such as Europe/Berlin'],
  ];
  for (const [json, expected] of cases) {
    it(`${JSON.stringify(json).slice(0, 90)}: ${expected ?? 'fine'}`, () => {
      const found = profileProblem(fromJson(ProfileSchema, json));
      expect(found && `${found.field} ${found.problem}`).to.equal(expected);
    });
  }
});
