import { create } from '@bufbuild/protobuf';
import {
  TelemetrySchema_AdditionalKeys,
  TelemetrySchema_Key_Type,
  TelemetrySchemaSchema,
} from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { testDevice, testDeviceId } from '../testing/test-devices.ts';
import { type GivenPoint, isRejection, pointLimits, validatePoint } from './validate.ts';

const now = Date.parse('2026-11-21T12:00:00Z');
const deviceId = testDeviceId(1);
const telemetrySchema = create(TelemetrySchemaSchema, {
  keys: {
    temperature: { type: TelemetrySchema_Key_Type.number, required: true, min: -40, max: 85 },
    state: { type: TelemetrySchema_Key_Type.string, enum: ['on', 'off'] },
    note: { type: TelemetrySchema_Key_Type.string, maxLength: 4 },
  },
  additionalKeys: TelemetrySchema_AdditionalKeys.reject,
});
const good: GivenPoint = {
  deviceId,
  timestamp: '2026-11-21T11:59:00.5Z',
  numericValues: { temperature: 21.5 },
  stringValues: { state: 'on' },
};
const service = { kind: 'service', tenantId: 'acme', deviceId: '' } as const;
const names = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, n) => [`k${n}`, n]));

describe('validatePoint', () => {
  it('accepts a point and adds its canonical text and hash', () => {
    const judged = validatePoint(good, testDevice(deviceId, { telemetrySchema }), service, now);
    expect(judged).to.deep.include({
      tenantId: 'acme',
      time: { seconds: now / 1000 - 60, nanoseconds: 500_000_000 },
      payload: '{"numeric_values":{"temperature":21.5},"string_values":{"state":"on"}}',
    });
  });

  it('rejects keys of the service', () => {
    const key = 'kellet.ota.result';
    for (const values of [{ numericValues: { [key]: 1 } }, { stringValues: { [key]: 'successful' } }]) {
      expect(validatePoint({ ...good, ...values }, testDevice(deviceId), service, now)).to.deep.equal({
        code: 'INVALID_ARGUMENT',
        message: 'keys that begin with kellet. are reserved',
      });
    }
    const similar = { ...good, numericValues: { kellet: 1, 'x.kellet.ota': 2 } };
    expect(isRejection(validatePoint(similar, testDevice(deviceId), service, now))).to.equal(false);
  });

  const open = testDevice(deviceId);
  const strict = testDevice(deviceId, { telemetrySchema });
  const cases: [string, Partial<GivenPoint>, typeof open, string | undefined][] = [
    ['no values', { numericValues: {}, stringValues: {} }, open, undefined],
    ['256 keys', { numericValues: names(pointLimits.keys - 1) }, open, undefined],
    ['257 keys', { numericValues: names(pointLimits.keys) }, open, 'more than 256 values'],
    ['a key of 128 bytes', { numericValues: { ['é'.repeat(64)]: 1 } }, open, undefined],
    ['a key of 130 bytes', { numericValues: { ['é'.repeat(65)]: 1 } }, open, 'a key is longer than 128 bytes'],
    ['an empty key', { numericValues: { '': 1 } }, open, 'a key is empty'],
    ['4 KiB of text', { stringValues: { s: '€'.repeat(1365) } }, open, undefined],
    [
      'more than 4 KiB',
      { stringValues: { s: '€'.repeat(1366) } },
      open,
      'string_values["s"] is longer than 4096 bytes',
    ],
    ['NaN', { numericValues: { n: NaN } }, open, 'numeric_values["n"] is not a finite number'],
    ['an infinity', { numericValues: { n: -Infinity } }, open, 'numeric_values["n"] is not a finite number'],
    ['NUL in text', { stringValues: { s: 'a\0b' } }, open, 'string_values["s"] contains NUL'],
    ['NUL in a key', { numericValues: { 'a\0': 1 } }, open, 'a key contains NUL'],
    ['a lone surrogate', { stringValues: { s: '\ud800' } }, open, 'string_values["s"] is not well-formed Unicode'],
    ['no timestamp', { timestamp: '' }, open, 'timestamp is not RFC 3339, such as 2026-01-31T12:00:00Z'],
    ['a time before 1970', { timestamp: '1969-12-31T23:59:59.9Z' }, open, 'timestamp is before 1970'],
    ['the first second', { timestamp: '1970-01-01T00:00:00Z' }, open, undefined],
    ['ten minutes ahead', { timestamp: '2026-11-21T12:10:00Z' }, open, undefined],
    [
      'more than ten minutes ahead',
      { timestamp: '2026-11-21T12:10:01Z' },
      open,
      'timestamp is more than ten minutes ahead',
    ],
    ['values that conform to the schema', {}, strict, undefined],
    ['a missing required key', { numericValues: {} }, strict, 'temperature is required'],
    ['a value that is too small', { numericValues: { temperature: -41 } }, strict, 'temperature is below -40'],
    ['a value that is too large', { numericValues: { temperature: 85.1 } }, strict, 'temperature is above 85'],
    ['a string instead of a number', { stringValues: { temperature: '21' } }, strict, 'temperature must be a number'],
    ['a number instead of a string', { numericValues: { temperature: 1, state: 1 } }, strict, 'state must be a string'],
    [
      'a value outside a long enum',
      { stringValues: { level: 'none' } },
      testDevice(deviceId, {
        telemetrySchema: create(TelemetrySchemaSchema, {
          keys: {
            level: {
              type: TelemetrySchema_Key_Type.string,
              enum: Array.from({ length: 128 }, (_, n) => (n === 1 ? 'x'.repeat(256) : `l${n}`)),
            },
          },
        }),
      }),
      `level must be one of l0, ${'x'.repeat(40)}…, l2, l3, l4, l5, l6, l7, l8, l9 …`,
    ],
    ['a value outside the enum', { stringValues: { state: 'idle' } }, strict, 'state must be one of on, off'],
    ['a string that is too long', { stringValues: { note: 'ééé' } }, strict, 'note is longer than 4 bytes'],
    ['a key that is not in the schema', { stringValues: { other: '' } }, strict, 'other is not a key of the schema'],
    ['toString as a key', { stringValues: { toString: '' } }, strict, 'toString is not a key of the schema'],
  ];
  for (const [name, change, device, message] of cases) {
    it(`${message ? 'rejects' : 'accepts'} ${name}`, () => {
      const judged = validatePoint({ ...good, ...change }, device, service, now);
      if (message) expect(judged).to.deep.equal({ code: 'INVALID_ARGUMENT', message });
      else expect(isRejection(judged)).to.equal(false);
    });
  }

  it('rejects a device that the tenant does not have with NOT_FOUND', () => {
    expect(validatePoint(good, undefined, service, now)).to.include({ code: 'NOT_FOUND' });
  });

  const other = testDeviceId(2);
  const byKey: [string, string, string, boolean][] = [
    ['its own device', deviceId, '', true],
    ['another device', other, '', false],
    ['a child of its device', other, deviceId, true],
    ['a child of another gateway', other, testDeviceId(3), false],
  ];
  for (const [name, target, gatewayDeviceId, allowed] of byKey) {
    it(`a device key ${allowed ? 'may' : 'may not'} write for ${name}`, () => {
      const caller = { kind: 'device', tenantId: 'acme', deviceId } as const;
      const judged = validatePoint(good, testDevice(target, { gatewayDeviceId }), caller, now);
      if (allowed) expect(isRejection(judged)).to.equal(false);
      else expect(judged).to.include({ code: 'PERMISSION_DENIED' });
    });
  }
});
