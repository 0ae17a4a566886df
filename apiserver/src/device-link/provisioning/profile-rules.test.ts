import { fromJson, type JsonObject } from '@bufbuild/protobuf';
import { ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { checkProfile } from './profile-rules.ts';

describe('profile rules', () => {
  const schemaKey = (key: JsonObject): JsonObject => ({ telemetry_schema: { keys: { temperature: key } } });
  const window = (overrides: JsonObject): JsonObject => ({
    ota_policy: { window: { start: '22:00', end: '04:00', ...overrides } },
  });
  const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index}`, 'v']));
  const at = 'telemetry_schema.keys["temperature"]';

  const cases: [profile: JsonObject, refused: string | undefined][] = [
    [{}, undefined],
    [{ type: 'x'.repeat(128) }, undefined],
    [{ type: 'x'.repeat(129) }, 'type must have at most 128 characters'],
    [{ type: 'a\0b' }, 'type must not contain NUL'],
    [{ default_tags: many(64) }, undefined],
    [{ default_tags: many(65) }, 'default_tags must have at most 64 entries'],
    [{ default_tags: { '': 'v' } }, 'default_tags[""] key is required'],
    [{ default_tags: { site: 'x'.repeat(257) } }, 'default_tags["site"] must have at most 256 characters'],
    [{ anchoring_policy: { mode: 'per_event' } }, undefined],
    [{ anchoring_policy: {} }, undefined],
    [{ anchoring_policy: { mode: 'mode_unspecified' } }, 'anchoring_policy.mode must be one of'],
    [{ anchoring_policy: { mode: 9 } }, 'anchoring_policy.mode must be one of'],
    [{ offline_after_seconds: 2_592_000 }, undefined],
    [{ offline_after_seconds: 2_592_001 }, 'offline_after_seconds must be at most 2592000'],
    [schemaKey({ type: 'number', min: -40, max: 85, unit: '°C', required: true }), undefined],
    [schemaKey({ type: 'string', enum: ['on', 'off'], max_length: 8 }), undefined],
    [schemaKey({}), `${at}.type must be number or string`],
    [schemaKey({ type: 7 }), `${at}.type must be number or string`],
    [schemaKey({ type: 'number', min: 2, max: 1 }), `${at}: min must not be greater`],
    [schemaKey({ type: 'number', min: 'NaN' }), `${at}: min and max must be finite`],
    [schemaKey({ type: 'number', max: 'Infinity' }), `${at}: min and max must be finite`],
    [schemaKey({ type: 'number', enum: ['1'] }), `${at}: enum and max_length are for strings`],
    [schemaKey({ type: 'number', unit: 'x'.repeat(33) }), `${at}.unit must have at most 32`],
    [schemaKey({ type: 'string', min: 0 }), `${at}: min and max are for numbers`],
    [schemaKey({ type: 'string', unit: 'm' }), `${at}: unit is for numbers`],
    [schemaKey({ type: 'string', max_length: 0 }), `${at}.max_length must be 1 to 4096`],
    [schemaKey({ type: 'string', enum: ['a', 'a'] }), `${at}.enum must not repeat a value`],
    [schemaKey({ type: 'string', enum: ['x'.repeat(257)] }), `${at}.enum must have at most 256`],
    [{ telemetry_schema: { additional_keys: 'reject' } }, undefined],
    [{ telemetry_schema: { additional_keys: 5 } }, 'telemetry_schema.additional_keys'],
    [{ telemetry_schema: { keys: { ['x'.repeat(129)]: { type: 'number' } } } }, 'telemetry_schema.keys'],
    [{ ota_policy: { max_attempts: 101 } }, 'ota_policy.max_attempts must be at most 100'],
    [{ ota_policy: { device_timeout_seconds: 2_592_001 } }, 'ota_policy.device_timeout_seconds must be at most'],
    [window({ days: ['mon', 'sun'], time_zone: 'Europe/Berlin' }), undefined],
    [window({ start: '24:00' }), 'ota_policy.window.start must be HH:MM'],
    [window({ end: '' }), 'ota_policy.window.end must be HH:MM'],
    [window({ days: ['mon', 'mon'] }), 'ota_policy.window.days must not repeat a day'],
    [window({ time_zone: 'Mars/Olympus' }), 'ota_policy.window.time_zone'],
    [window({ time_zone: '+02:00' }), 'ota_policy.window.time_zone'],
  ];
  for (const [json, refused] of cases) {
    it(`${JSON.stringify(json).slice(0, 80)}: ${refused ?? 'fine'}`, () => {
      const check = () => checkProfile(fromJson(ProfileSchema, json));
      if (refused === undefined) expect(check).not.to.throw();
      else expect(check).to.throw(KelletError, refused);
    });
  }
});
