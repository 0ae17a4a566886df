// What is kept of the points of a flush must have the same effect as all of them.
import { expect } from 'chai';
import fc from 'fast-check';
import type { AcceptedPoint } from '../points/validate.ts';
import { testDevice, testDeviceId } from '../testing/test-devices.ts';
import { LatestBuilder, mergePoint, noLatestValues, toDocument } from './latest-values.ts';
import { measuredPoints } from './measured-point.ts';
import { newestOfDevices } from './newest-points.ts';

/** Returns the values of a builder's points. */
const latestOf = (builder: LatestBuilder) => {
  const values = noLatestValues();
  builder.mergeInto(values);
  return values;
};

/** The forms in which devices of the test send points. */
const forms = [['a', 'b'], ['a', 'b'], ['b', 'c'], ['a'], []].map((keys) => ({ keys, names: {} }));
const devices = [0, 1, 2].map((n) => testDevice(testDeviceId(n), n === 0 ? {} : { key: `acme/${testDeviceId(n)}` }));

const point = fc
  .record({
    device: fc.constantFrom(...devices),
    time: fc.record({ seconds: fc.nat(2), nanoseconds: fc.nat(1) }),
    form: fc.constantFrom(...forms),
    value: fc.nat(1000),
    isParsed: fc.boolean(),
    kind: fc.constantFrom('sent', 'sent', 'sent', 'result', 'own'),
  })
  .map(({ device, time, form, value, isParsed, kind }): AcceptedPoint => {
    const numericValues = Object.fromEntries(form.keys.map((key) => [key, value]));
    return {
      ...{ tenantId: 'acme', device, time, numericValues, stringValues: { t: String(value) }, dataHash: '' },
      payload: JSON.stringify({ numeric_values: numericValues, string_values: { t: String(value) } }),
      ...(isParsed && { names: form.names }),
      ...(kind === 'result' && { resultId: 'r' }),
      ...(kind === 'own' && { isOwn: true }),
    };
  });

const sorted = (document: string): unknown =>
  JSON.parse(document, (_key, value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );

describe('the newest points of a flush', () => {
  it('leave the same latest values as all points, and count all that devices sent', () => {
    fc.assert(
      fc.property(fc.array(fc.array(point, { maxLength: 8 }), { maxLength: 3 }), (flushes) => {
        const builders = new Map(devices.map((device) => [device.deviceId, new LatestBuilder()]));
        const expected = new Map(devices.map((device) => [device.deviceId, noLatestValues()]));
        for (const points of flushes) {
          const found = newestOfDevices(points);
          for (const kept of measuredPoints(found)) builders.get(kept.deviceId)!.add(kept);
          const sent = points.filter(({ isOwn }) => !isOwn);
          for (const { device, time, ...values } of sent) {
            mergePoint(
              expected.get(device.deviceId)!,
              values,
              BigInt(time.seconds) * 10n ** 9n + BigInt(time.nanoseconds),
            );
          }
          expect(found.map(({ key, count, isSent }) => [key, count, isSent])).to.deep.equal(
            [...Map.groupBy(sent, ({ device }) => device.deviceId)].map(([deviceId, of]) => [
              `acme/${deviceId}`,
              of.length,
              of.some(({ resultId }) => resultId === undefined),
            ]),
          );
        }
        for (const [deviceId, builder] of builders) {
          expect(sorted(toDocument(latestOf(builder)))).to.deep.equal(sorted(toDocument(expected.get(deviceId)!)));
        }
      }),
      { numRuns: 1000 },
    );
  });

  it('are one for a device that sends regularly', () => {
    const device = devices[1]!;
    const regular = Array.from({ length: 100 }, (_, seconds): AcceptedPoint => {
      const numericValues = { a: seconds };
      const payload = JSON.stringify({ numeric_values: numericValues, string_values: {} });
      const time = { seconds, nanoseconds: 0 };
      const { names } = forms[0]!;
      return { tenantId: 'acme', device, time, numericValues, stringValues: {}, payload, dataHash: '', names };
    });
    const [only, ...none] = newestOfDevices(regular);
    expect(none).to.deep.equal([]);
    expect(only).to.include({ count: 100, newest: regular[99], others: undefined });
    const backwards = newestOfDevices(regular.toReversed());
    expect(backwards[0]).to.include({ count: 100, newest: regular[99], others: undefined });
  });
});
