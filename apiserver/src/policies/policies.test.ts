import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  OtaPolicySchema,
  TelemetrySchema_Key_Type as KeyType,
  TelemetrySchemaSchema,
} from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { checkOtaPolicy, checkTelemetrySchema } from './policies.ts';

type Key = NonNullable<MessageInitShape<typeof TelemetrySchemaSchema>['keys']>[string];
const { number, string } = KeyType;

describe('policies', () => {
  for (const [name, key, refused] of [
    ['a number', { type: number }, ''],
    ['a number in a range', { type: number, min: -40, max: 85, unit: '°C', required: true }, ''],
    ['equal bounds', { type: number, min: 1, max: 1 }, ''],
    ['bounds the wrong way round', { type: number, min: 2, max: 1 }, 'min must not be greater'],
    ['an infinite bound', { type: number, max: Infinity }, 'finite'],
    ['an enum of a number', { type: number, enum: ['a'] }, 'for strings'],
    ['a length of a number', { type: number, maxLength: 3 }, 'for strings'],
    ['a string', { type: string, enum: ['on', 'off'], maxLength: 4096 }, ''],
    ['a string that is too long', { type: string, maxLength: 4097 }, 'max_length'],
    ['a bound of a string', { type: string, min: 0 }, 'for numbers'],
    ['no type', {}, 'type must be number or string'],
  ] as [string, Key, string][]) {
    it(`${refused === '' ? 'accepts' : 'rejects'} ${name}`, () => {
      const schema = create(TelemetrySchemaSchema, { keys: { value: key } });
      const check = () => checkTelemetrySchema('telemetry_schema', schema);
      if (refused === '') expect(check).not.to.throw();
      else expect(check).to.throw(refused);
    });
  }

  for (const [start, end, days, zone, refused] of [
    ['22:00', '04:30', ['mon', 'sun'], 'Europe/Berlin', ''],
    ['00:00', '23:59', [], '', ''],
    ['24:00', '04:00', [], '', 'start must be HH:MM'],
    ['1:00', '04:00', [], '', 'start must be HH:MM'],
    ['01:00', '', [], '', 'end must be HH:MM'],
    ['01:00', '01:00', [], '', 'must differ'],
    ['01:00', '02:00', ['Monday'], '', 'days'],
    ['01:00', '02:00', [], 'Mars/Olympus', 'time_zone'],
  ] as [string, string, string[], string, string][]) {
    it(`${refused === '' ? 'accepts' : 'rejects'} the window ${start}–${end} ${days.join()} ${zone}`, () => {
      const policy = create(OtaPolicySchema, { window: { start, end, days, timeZone: zone } });
      const check = () => checkOtaPolicy('ota_policy', policy);
      if (refused === '') expect(check).not.to.throw();
      else expect(check).to.throw(refused);
    });
  }
});
