import { create, type MessageInitShape, toJson } from '@bufbuild/protobuf';
import { OtaPolicySchema } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import { expect } from 'chai';
import { mergedField } from './merged-field.ts';

type Policy = MessageInitShape<typeof OtaPolicySchema> | undefined;

describe('a nested message after an update', () => {
  const current: Policy = { maxAttempts: 3, requireSignature: true, window: { start: '22:00', end: '04:00' } };
  const cases: [string, string[], Policy, Policy, Policy][] = [
    ['that does not name it', ['type'], current, { maxAttempts: 9 }, current],
    ['that names it', ['ota_policy'], current, { maxAttempts: 9 }, { maxAttempts: 9 }],
    ['that removes it', ['ota_policy'], current, undefined, undefined],
    ['of one field', ['ota_policy.max_attempts'], current, { maxAttempts: 9 }, { ...current, maxAttempts: 9 }],
    ['that removes one field', ['ota_policy.window'], current, {}, { maxAttempts: 3, requireSignature: true }],
    [
      'of one field, unset in the request',
      ['ota_policy.max_attempts'],
      current,
      undefined,
      { ...current, maxAttempts: 0 },
    ],
    [
      'of a field two levels down',
      ['ota_policy.window.start', 'type'],
      current,
      { window: { start: '21:00', end: '23:00' } },
      { ...current, window: { start: '21:00', end: '04:00' } },
    ],
    [
      'of a message that was unset',
      ['ota_policy.window.end'],
      undefined,
      { window: { end: '1' } },
      { window: { end: '1' } },
    ],
    ['of a field with a similar name', ['ota_policy_x.max_attempts'], current, { maxAttempts: 9 }, current],
  ];
  for (const [what, paths, before, update, after] of cases) {
    it(what, () => {
      const message = (init: Policy) => init && create(OtaPolicySchema, init);
      const merged = mergedField(
        OtaPolicySchema,
        'ota_policy',
        { paths },
        { current: message(before), update: message(update) },
      );
      const json = (policy: Policy) => policy && toJson(OtaPolicySchema, create(OtaPolicySchema, policy));
      expect(json(merged)).to.deep.equal(json(after));
    });
  }

  it('does not change the message it had', () => {
    const before = create(OtaPolicySchema, current);
    const update = create(OtaPolicySchema, { window: { start: '21:00' } });
    mergedField(OtaPolicySchema, 'ota_policy', { paths: ['ota_policy.window.start'] }, { current: before, update });
    expect(before.window!.start).to.equal('22:00');
  });
});
