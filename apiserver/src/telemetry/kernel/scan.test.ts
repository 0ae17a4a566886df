// The kernel against its definition: over generated and mutated bodies, what it accepts must be what the general path decodes and
// validates, byte for byte.
import { create } from '@bufbuild/protobuf';
import {
  type TelemetrySchema,
  TelemetrySchema_KeySchema,
  TelemetrySchemaSchema,
} from '@kellet/proto/es/kellet/v1/common_pb';
import { type IngestRequest, IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import fc from 'fast-check';
import { RouteTable } from '../../gateway/transcoding/routes.ts';
import { decodeRequest } from '../../gateway/transcoding/transcode.ts';
import { publicCaller } from '../../platform/rpc.ts';
import { GivenSubmission, type Submission, submissionOf } from '../ingest/submission.ts';
import { toNanoseconds } from '../points/timestamp.ts';
import { type AcceptedPoint, type GivenPoint, isRejection, type Rejection } from '../points/validate.ts';
import { testDevice } from '../testing/test-devices.ts';
import { OpenBatches } from '../write/batches.ts';
import { encodeFlush } from '../write/flush.ts';
import { scanBody } from './scan.ts';
import { scanRequest } from './scanned-request.ts';

const match = new RouteTable([TelemetryService]).match('POST', '/api/v1/telemetry')!;
const decode = (body: Uint8Array) =>
  decodeRequest(match, { query: '', body, contentType: 'application/json' }) as IngestRequest;

const tenantId = 'acme';
const caller = { ...publicCaller, kind: 'service' as const, tenantId };
const now = Date.UTC(2026, 0, 1);
const deviceId = '0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a55';

/** Returns everything that is observable of each point of a request. */
function judge(request: IngestRequest, isScanned: boolean, schema?: TelemetrySchema): unknown[] {
  const points: Submission = isScanned ? submissionOf(request, tenantId) : new GivenSubmission(request.points);
  const judged = points.deviceIds.map((id, index) => {
    if (points.devices) expect(points.devices[index]!.keyIn(tenantId)).to.equal(`${tenantId}/${id}`);
    return points.judge(index, testDevice(id, { telemetrySchema: schema }), caller, now);
  });
  const all = judged.map(observed);
  // The next body is read into the same memory.
  points.release();
  return all;
}

/** Returns everything that is observable of a point, with the bytes that a flush writes for it. */
function observed(point: AcceptedPoint | Rejection): unknown {
  if (isRejection(point)) return point;
  const { device, time, payload, numericValues, stringValues } = point;
  const dataHash = Buffer.from(point.dataHash, 'latin1').toString('hex');
  return {
    ...{ tenantId: point.tenantId, deviceId: device.deviceId, time: toNanoseconds(time), payload, dataHash },
    // JSON knows no -0.
    values: JSON.parse(JSON.stringify([numericValues, stringValues])) as unknown,
    flush: flushOf(point).toString('hex'),
  };
}

function flushOf(point: AcceptedPoint): Buffer {
  const batches = new OpenBatches(() => '0198c7a4-0000-7000-8000-00000000abcd', { maxLeaves: 10, secondsOf: () => 30 });
  const placement = batches.place([point], now, false);
  const flush = encodeFlush({
    ...{ writerId: 'w', epoch: 0, number: 1n, points: [point], placement, received: now + 4_294_967_296_123 },
    ...{ segmentId: 7n, finishedSegment: undefined, idempotency: [] },
    ruleFeed: { revisions: new Map(), rows: [] },
  });
  const bytes = Buffer.from(flush.bytes());
  flush.release();
  return bytes;
}

/** Throws unless a body that the kernel accepts means the same on both paths. Reports whether it accepts the body. */
function expectEqual(body: Uint8Array, schema?: TelemetrySchema): boolean {
  const request = scanRequest(body, () => decode(body));
  if (!request) return false;
  const definition = decode(body);
  const [scanned, defined] = [judge(request, true, schema), judge(definition, false, schema)];
  expect(scanned).to.deep.equal(defined);
  expect(create(IngestRequestSchema, { points: [...request.points] })).to.deep.equal(definition);
  return true;
}

/** Decodes a body as MQTT does: what it leaves out is what the connection says, and it may be a single point. */
function decodeWithDefaults(body: Buffer): IngestRequest {
  const object = JSON.parse(body.toString()) as object;
  const request = decode('points' in object ? body : Buffer.from(`{"points":[${body.toString()}]}`));
  for (const one of request.points) {
    if (one.deviceId === '') one.deviceId = deviceId;
    if (one.timestamp === '') one.timestamp = new Date(now).toISOString();
  }
  return request;
}

/** The same as expectEqual for a body with defaults. */
function expectEqualWithDefaults(body: Buffer): boolean {
  const request = scanRequest(body, () => decodeWithDefaults(body), { deviceId, now });
  if (!request) return false;
  const definition = decodeWithDefaults(body);
  expect(judge(request, true)).to.deep.equal(judge(definition, false));
  expect(create(IngestRequestSchema, { points: [...request.points] })).to.deep.equal(definition);
  return true;
}

const bodyOf = (points: unknown, space?: number): Buffer => Buffer.from(JSON.stringify({ points }, undefined, space));

const name = fc.oneof(
  fc.stringMatching(/^[\w.:/-]{1,8}$/),
  fc.constantFrom('__proto__', 'constructor', '1', '10', '9', 'kellet.x', 'a b', 'é', '', 'x'.repeat(129), 'a"b'),
);
const number = fc.oneof(
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.integer(),
  fc.double({ min: -1, max: 1, noNaN: true }),
  fc
    .tuple(fc.integer({ min: -1e6, max: 1e6 }), fc.integer({ min: 0, max: 9 }))
    .map(([value, digits]) => value / 10 ** digits),
);
const text = fc.oneof(
  fc.string({ maxLength: 12 }),
  fc.string({ unit: 'binary', maxLength: 6 }),
  fc.constant('x'.repeat(4097)),
);
const timestamp = fc.oneof(
  fc
    .date({ min: new Date('1960-01-01'), max: new Date('2030-01-01'), noInvalidDate: true })
    .map((date) => date.toISOString()),
  fc.constantFrom(
    ...['2026-01-01T00:00:00Z', '2025-06-01T12:34:56.123456789Z', '2025-06-01T12:34:56+02:00', '2025-06-01t12:34:56z'],
    ...[
      '2025-02-29T00:00:00Z',
      '2025-01-01T24:00:00Z',
      '2025-01-01T00:00:60Z',
      'yesterday',
      '',
      '2025-01-01T00:00:00.Z',
    ],
  ),
);
const point: fc.Arbitrary<object> = fc.record(
  {
    device_id: fc.oneof(fc.constant(deviceId), fc.uuid(), fc.constantFrom('', deviceId.toUpperCase(), 'device')),
    timestamp,
    numeric_values: fc.dictionary(name, number, { maxKeys: 4 }),
    string_values: fc.dictionary(name, text, { maxKeys: 3 }),
  },
  { requiredKeys: [] },
);
/** A point as most devices send it. */
const usualPoint = fc.record({
  device_id: fc.constant(deviceId),
  timestamp: fc
    .date({ min: new Date('1971-01-01'), max: new Date('2025-12-31'), noInvalidDate: true })
    .map((date) => date.toISOString()),
  numeric_values: fc.dictionary(fc.stringMatching(/^[a-z_]{1,8}$/), number, { maxKeys: 4 }),
  string_values: fc.dictionary(fc.stringMatching(/^[a-z_]{1,8}$/), fc.stringMatching(/^[ !#-[\]-~äß€😀]{0,12}$/u), {
    maxKeys: 3,
  }),
});

describe('the ingest kernel', () => {
  it('accepts usual bodies, and makes of them what the definition does', () => {
    const points = fc.array(usualPoint, { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(points, fc.constantFrom(undefined, 1, 2), (given, space) => {
        expect(expectEqual(bodyOf(given, space))).to.equal(true);
      }),
      { numRuns: 500 },
    );
  });

  it('reads bodies that leave out device and time, and single points, where the connection says the rest', () => {
    const partial = fc
      .tuple(usualPoint, fc.boolean(), fc.boolean())
      .map(([{ device_id, timestamp: time, ...values }, hasDevice, hasTime]) => ({
        ...values,
        ...(hasDevice && { device_id }),
        ...(hasTime && { timestamp: time }),
      }));
    fc.assert(
      fc.property(fc.array(partial, { minLength: 1, maxLength: 4 }), fc.constantFrom(undefined, 1), (given, space) => {
        // A point with nothing in it is out of the ordinary.
        const isRead = (one: object) => Object.values(one).some((value) => Object.keys(value as object).length > 0);
        expect(expectEqualWithDefaults(bodyOf(given, space))).to.equal(given.every(isRead));
        const single = Buffer.from(JSON.stringify(given[0], undefined, space));
        expect(expectEqualWithDefaults(single)).to.equal(isRead(given[0]!));
      }),
      { numRuns: 500 },
    );
    for (const body of [
      '{}',
      '{"points":[]}',
      '{"device_id":""}',
      '{"timestamp":"now"}',
      '{"a":1}',
      '{}{}',
      '[]',
      '',
    ]) {
      expect(scanBody(Buffer.from(body), 5000, { deviceId, now }), body).to.equal(undefined);
    }
    const body = Buffer.from('{"numeric_values":{"a":1}}');
    expect(scanBody(body, 5000, { deviceId: 'nobody', now })).to.equal(undefined);
    expect(scanBody(body, 5000)).to.equal(undefined);
    expect(scanBody(bodyOf([{ numeric_values: { a: 1 } }]), 5000)).to.equal(undefined);
  });

  it('makes of any other body what the definition does, or leaves it to the definition', () => {
    fc.assert(
      fc.property(fc.array(point, { maxLength: 3 }), (given) => void expectEqual(bodyOf(given))),
      { numRuns: 1000 },
    );
  });

  it('stays equal when bytes of a body are changed, repeated or left out', () => {
    const bytes = fc.oneof(
      fc.constantFrom(...Buffer.from('"\\{}[],:.0159eE+-naltr \n\t\0\x7f/Z')),
      fc.integer({ min: 0, max: 255 }),
    );
    const mutation = fc.record({ at: fc.nat(), remove: fc.nat(3), insert: fc.array(bytes, { maxLength: 3 }) });
    fc.assert(
      fc.property(
        fc.array(usualPoint, { minLength: 1, maxLength: 2 }),
        fc.array(mutation, { maxLength: 2 }),
        (given, mutations) => {
          let body = bodyOf(given);
          for (const { at, remove, insert } of mutations) {
            const from = at % body.length;
            body = Buffer.concat([body.subarray(0, from), Buffer.from(insert), body.subarray(from + remove)]);
          }
          let isRefused = false;
          try {
            decode(body);
          } catch {
            isRefused = true;
          }
          if (isRefused) expect(scanBody(body, 5000)).to.equal(undefined);
          else expectEqual(body);
        },
      ),
      { numRuns: 5000 },
    );
  });

  it('judges values by any schema like the definition', () => {
    const short = fc.stringMatching(/^[ab]{1}$/);
    const rule = fc
      .record(
        {
          ...{ type: fc.constantFrom(0, 1, 2), required: fc.boolean(), min: fc.integer({ min: -9, max: 9 }) },
          ...{ max: fc.integer({ min: -9, max: 9 }), maxLength: fc.integer({ min: 0, max: 3 }) },
          enum: fc.array(fc.constantFrom('x', 'yy', 'ä'), { maxLength: 2 }),
        },
        { requiredKeys: ['type', 'required', 'enum'] },
      )
      .map((given) => create(TelemetrySchema_KeySchema, given));
    const schema = fc
      .record({ keys: fc.dictionary(short, rule, { maxKeys: 2 }), additionalKeys: fc.constantFrom(0, 1, 2) })
      .map((given) => create(TelemetrySchemaSchema, given));
    const values = fc.record({
      numeric_values: fc.dictionary(short, fc.integer({ min: -10, max: 10 }), { maxKeys: 2 }),
      string_values: fc.dictionary(short, fc.constantFrom('', 'x', 'yy', 'ä', 'zzzz'), { maxKeys: 2 }),
    });
    fc.assert(
      fc.property(schema, fc.array(values, { minLength: 1, maxLength: 3 }), (rules, given) => {
        const body = bodyOf(given.map((one) => ({ ...usual, ...one })));
        expect(expectEqual(body, rules)).to.equal(true);
      }),
      { numRuns: 1000 },
    );
  });

  const usual = { device_id: deviceId, timestamp: '2025-01-01T00:00:00Z' };
  const bodies: [string, string, boolean][] = [
    ['numbers that are canonical', '"numeric_values":{"a":1,"b":-2.5,"c":0.000001,"d":123456789012345}', true],
    ['numbers that are not', '"numeric_values":{"a":1.0,"b":-0,"c":1e3,"d":0.0000001,"e":1234567890123456789}', true],
    ['a number beyond a double', '"numeric_values":{"a":1e999}', false],
    ['a number as text', '"numeric_values":{"a":"1"}', false],
    ['a leading zero', '"numeric_values":{"a":01}', false],
    ['names out of order', '"string_values":{"b":"1","a":"2"},"numeric_values":{"z":1,"10":2,"9":3}', true],
    ['a name given twice', '"numeric_values":{"a":1,"a":2}', false],
    ['the same name in both', '"numeric_values":{"a":1},"string_values":{"a":"1"}', true],
    ['text outside ASCII', '"string_values":{"a":"°C, 温度, 😀"}', true],
    ['an escape', '"string_values":{"a":"\\n"}', false],
    ['null', '"string_values":null', false],
    ['an unknown field', '"other":1', false],
    ['the JSON name of a field', '"numericValues":{"a":1}', false],
    ['a reserved name', '"numeric_values":{"kellet.a":1}', false],
    ['white space', ' "numeric_values" : { "a" : 1 , "b":\t2 }\r\n', true],
    ['__proto__', '"numeric_values":{"__proto__":1,"a":2},"string_values":{"__proto__":"x"}', true],
    ['256 values', `"numeric_values":{${Array.from({ length: 256 }, (_, n) => `"k${n}":${n}`).join(',')}}`, true],
    ['257 values', `"numeric_values":{${Array.from({ length: 257 }, (_, n) => `"k${n}":${n}`).join(',')}}`, false],
    ['4,096 bytes of text', `"string_values":{"a":"${'ä'.repeat(2048)}"}`, true],
    ['more', `"string_values":{"a":"${'ä'.repeat(2048)}b"}`, false],
  ];
  for (const [what, members, isScanned] of bodies) {
    it(`${isScanned ? 'reads' : 'leaves to the definition'}: ${what}`, () => {
      const whole = JSON.stringify(usual).replace(/\}$/, `,${members}}`);
      const body = Buffer.from(`{"points":[${JSON.stringify(usual)},${whole}]}`);
      expect(scanBody(body, 5000) !== undefined).to.equal(isScanned);
      if (isScanned) expectEqual(body);
    });
  }

  it('leaves text that is not UTF-8, too many points, and none to the definition', () => {
    const one = bodyOf([{ ...usual, string_values: { a: 'ab' } }]);
    one[one.indexOf('ab')] = 0xff;
    expect(scanBody(one, 5000)).to.equal(undefined);
    expect(scanBody(bodyOf([usual, usual]), 1)).to.equal(undefined);
    expect(scanBody(bodyOf([usual, usual]), 2)!.points).to.have.lengthOf(2);
    expect(scanBody(bodyOf([]), 5000)).to.equal(undefined);
  });

  it('does not let the rows of a body be read once they are released', () => {
    const body = bodyOf([{ ...usual, numeric_values: { a: 1 } }]);
    const points = submissionOf(
      scanRequest(body, () => decode(body))!,
      tenantId,
    );
    const accepted = points.judge(0, testDevice(deviceId), caller, now) as AcceptedPoint;
    expect(accepted.payload).to.equal('{"numeric_values":{"a":1},"string_values":{}}');
    points.release();
    expect(() => accepted.payload).to.throw('used after their release');
    expect(() => flushOf(accepted)).to.throw('used after their release');
    expect(accepted.dataHash).to.have.lengthOf(32);
  });

  it('leaves a body of many new forms to the definition', () => {
    const points = (count: number) =>
      Array.from({ length: count }, (_, n) => ({ ...usual, numeric_values: { [`of_${count}_${n}`]: 1 } }));
    expect(scanBody(bodyOf(points(16)), 5000)!.points).to.have.lengthOf(16);
    expect(scanBody(bodyOf(points(17)), 5000)).to.equal(undefined);
  });

  it('judges points like the definition: unknown, foreign and too far ahead', () => {
    const times = ['2026-01-01T00:10:00Z', '2026-01-01T00:10:01Z', '1969-12-31T23:59:59Z', '1970-01-01T00:00:00Z'];
    const given = times.map((time) => ({ ...usual, timestamp: time, numeric_values: { a: 1 } }));
    const body = bodyOf(given);
    expect(expectEqual(body)).to.equal(true);
    const request = scanRequest(body, () => decode(body))!;
    const points = submissionOf(request, tenantId);
    const definition: readonly GivenPoint[] = decode(body).points;
    const others = [undefined, testDevice(deviceId, { gatewayDeviceId: 'another' })];
    for (const device of others) {
      const who = { ...caller, kind: 'device' as const, deviceId: 'someone' };
      const isEqual = observed(points.judge(0, device, who, now));
      expect(isEqual).to.deep.equal(observed(new GivenSubmission(definition).judge(0, device, who, now)));
    }
  });
});
