// Compares the fast path of transcoding with the exact one: for any input, both must agree exactly.
import { create, type DescField, type DescMessage, type Message, ScalarType, toBinary } from '@bufbuild/protobuf';
import { expect } from 'chai';
import { publicServices } from '../services.ts';
import { decodePlain } from './compiled-decoder.ts';
import { encodePlain } from './compiled-encoder.ts';
import { decodePlainRequest } from './plain-request.ts';
import { type Match, RouteTable } from './routes.ts';
import { decodeExactly, decodeRequest, encodeExactly, encodeResponse } from './transcode.ts';

const routes = new RouteTable(publicServices).routes;

/** Returns a repeatable random source (mulberry32), from 0 to 1. */
function chance(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const pick = <T>(random: () => number, items: readonly T[]): T => items[Math.floor(random() * items.length)]!;

const strings = [
  '',
  'a',
  'boiler room',
  'é',
  '水',
  '😀',
  '":x',
  ' :',
  'a":1',
  'a\\b',
  'x\n',
  '\u0000',
  '__proto__',
  'NaN',
];
const numbers = [0, -0, 1, -1, 1.5, 50, 1e21, 1e-7, 2 ** 31 - 1, 2 ** 31, -(2 ** 31), 2 ** 32 - 1, 2 ** 32, 5e-324];
const times = ['2026-01-02T03:04:05Z', '2026-01-02T03:04:05.5+01:00', '1969-12-31T23:59:59.000000001Z', 'noon'];
const keys = ['t', 'humidity', '', '__proto__', 'constructor', '1', 'a"b', 'é'];
const anything: readonly unknown[] = [
  null,
  true,
  false,
  0,
  -0,
  Infinity,
  'x',
  '1',
  '1.5',
  'true',
  [],
  {},
  [[]],
  { a: 1 },
];

/**
 * Generates JSON for a field: mostly valid, sometimes anything. Text, so that it can contain what JSON.stringify cannot
 * produce.
 */
function jsonOf(random: () => number, field: DescField, depth: number): string {
  if (random() < 0.03) return stringify(pick(random, anything));
  if (field.fieldKind === 'list') return `[${repeat(random, () => itemOf(random, field, depth)).join(',')}]`;
  if (field.fieldKind === 'map') {
    return `{${repeat(random, () => `${stringify(pick(random, keys))}:${itemOf(random, field, depth)}`).join(',')}}`;
  }
  return itemOf(random, field, depth);
}

/** JSON.stringify, with numbers out of range as 1e999. */
const stringify = (value: unknown): string =>
  value === Infinity ? '1e999' : Object.is(value, -0) ? '-0' : JSON.stringify(value);

const repeat = (random: () => number, make: () => string): string[] =>
  Array.from({ length: Math.floor(random() * 4) }, make);

function itemOf(random: () => number, field: DescField, depth: number): string {
  if (field.enum) {
    const { name, number } = pick(random, field.enum.values);
    return random() < 0.9 ? stringify(name) : String(number);
  }
  if (field.message) return depth > 4 ? '{}' : messageJson(random, field.message, depth + 1);
  switch (field.scalar) {
    case ScalarType.STRING:
      return stringify(pick(random, strings));
    case ScalarType.BOOL:
      return pick(random, ['true', 'false']);
    case ScalarType.DOUBLE:
      return random() < 0.9 ? stringify(pick(random, numbers)) : pick(random, ['"NaN"', '"1.5"', '1e999', '-1E+2']);
    default:
      return random() < 0.8 ? stringify(Math.floor(random() * 100)) : stringify(pick(random, numbers));
  }
}

function messageJson(random: () => number, schema: DescMessage, depth = 0): string {
  if (schema.typeName === 'google.protobuf.Timestamp') return stringify(pick(random, times));
  if (schema.typeName.startsWith('google.protobuf.')) return stringify(pick(random, anything));
  const present = schema.fields.filter(() => random() < 0.6);
  if (random() < 0.03 && present.length > 0) present.push(pick(random, present));
  if (random() < 0.3) present.reverse();
  const members = present.map((field) => {
    const name = random() < 0.03 ? field.jsonName : field.name;
    return `${stringify(name)}${random() < 0.03 ? ' ' : ''}:${random() < 0.2 ? ' ' : ''}${jsonOf(random, field, depth)}`;
  });
  if (random() < 0.02) members.push(`${stringify(pick(random, keys))}:1`);
  return `{${members.join(random() < 0.2 ? ', ' : ',')}}`;
}

/** Sometimes corrupts a text in one place. */
function spoil(random: () => number, text: string): Buffer {
  const bytes = Buffer.from(text);
  if (random() < 0.05 && bytes.length > 0) bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256);
  return random() < 0.02 ? bytes.subarray(0, Math.floor(random() * bytes.length)) : bytes;
}

/** Returns a message or error in a comparable form with every difference that a handler could see. */
function outcome(decode: () => Message): unknown {
  try {
    return decode();
  } catch (error) {
    return { error: (error as Error).message };
  }
}

describe('the fast path of requests', () => {
  it('agrees with the exact one on every route, for any input', () => {
    const random = chance(1);
    let short = 0;
    let total = 0;
    for (let round = 0; round < 60; round += 1) {
      for (const route of routes) {
        const { input } = route.method;
        const field = input.fields.find((candidate) => candidate.name === route.body);
        const schema = field?.message ?? input;
        const text = route.body === '' && random() < 0.9 ? '' : messageJson(random, schema);
        const variables = new Map(
          route.template.variables.map(({ fieldPath }) => [
            fieldPath.join('.'),
            random() < 0.05 ? undefined : pick(random, ['d1', '50', 'x\u0000', '\ud800', 'é/1', '']),
          ]),
        );
        const match: Match = { route, variables };
        const query = random() < 0.03 ? 'page_size=3' : '';
        const request = { query, body: spoil(random, text), contentType: 'application/json' };
        const exact = outcome(() => decodeExactly(match, request));
        const what = `${route.method.name} ${request.body.toString()} ${JSON.stringify([...variables])}`;
        expect(
          outcome(() => decodeRequest(match, request)),
          what,
        ).to.deep.equal(exact);
        total += 1;
        const plain = decodePlainRequest(match, request);
        if (!plain) continue;
        short += 1;
        // Deep equality does not distinguish maps with a key __proto__.
        expect(Buffer.from(toBinary(input, plain)).equals(toBinary(input, exact as Message)), what).to.equal(true);
      }
    }
    // The generator produces enough valid and enough invalid input.
    expect(short / total).to.be.within(0.2, 0.8);
  });

  const schema = routes.find((route) => route.method.name === 'Ingest')!.method.input;
  const isShort = (text: string) => decodePlain(schema, Buffer.from(text)) !== undefined;

  it('handles telemetry as devices send it', () => {
    expect(
      isShort('{"points":[{"device_id":"d","timestamp":"t","numeric_values":{"a":1},"string_values":{}}]}'),
    ).to.equal(true);
    expect(isShort('{ "points": [ { "device_id": "d", "numeric_values": { "a": -0.5e3 } } ] }')).to.equal(true);
    expect(isShort('{"points":[{"numeric_values":{"__proto__":1}}]}')).to.equal(true);
  });

  for (const [what, text] of [
    ['a repeated key', '{"points":[],"points":[]}'],
    ['a repeated nested key', '{"points":[{"numeric_values":{"a":1,"a":1}}]}'],
    ['a repeated key before white space', '{"points":[{"numeric_values":{"a" :1,"a":1}}]}'],
    ['a repeated key __proto__', '{"points":[{"numeric_values":{"__proto__":1,"__proto__":1}}]}'],
    ['a repeated key offset by text', '{"points":[{"string_values":{"a":":","a":""}}]}'],
    ['an escape', '{"points":[{"device_id":"\\u0000"}]}'],
    ['infinity', '{"points":[{"numeric_values":{"a":1e999}}]}'],
    ['null', '{"points":null}'],
    ['trailing text after the value', '{"points":[]} {}'],
  ] as const) {
    it(`leaves ${what} to the exact one`, () => expect(isShort(text)).to.equal(false));
  }
});

describe('the fast path of responses', () => {
  /** Generates a value for a field as handlers do: mostly valid. */
  function valueOf(random: () => number, field: DescField, depth: number): unknown {
    if (random() < 0.01) return pick(random, [null, 'x', 5, true, {}, []]);
    if (field.fieldKind === 'list')
      return Array.from({ length: Math.floor(random() * 4) }, () => item(random, field, depth));
    if (field.fieldKind === 'map') {
      return Object.fromEntries(
        Array.from({ length: Math.floor(random() * 4) }, () => [pick(random, keys), item(random, field, depth)]),
      );
    }
    return item(random, field, depth);
  }

  function item(random: () => number, field: DescField, depth: number): unknown {
    if (field.enum) return random() < 0.95 ? pick(random, field.enum.values).number : 77;
    if (field.message) return messageOf(random, field.message, depth + 1);
    if (field.scalar === ScalarType.STRING) return pick(random, [...strings, '\ud800', '\u2028']);
    if (field.scalar === ScalarType.BOOL) return random() < 0.5;
    if (field.scalar === ScalarType.DOUBLE) return pick(random, [...numbers, NaN, Infinity]);
    return pick(random, [0, 1, 4294967295, 12]);
  }

  function messageOf(random: () => number, schema: DescMessage, depth = 0): unknown {
    if (schema.typeName === 'google.protobuf.Struct') {
      return pick<object>(random, [{}, { a: [1, null, { b: 'c"' }], ['__proto__']: -0 }, { a: NaN }, { a: undefined }]);
    }
    const message = create(schema) as Message & Record<string, unknown>;
    if (schema.typeName === 'google.protobuf.Timestamp') {
      message['seconds'] = pick(random, [0n, 1_767_323_045n, -1n, -62_135_596_801n, 253_402_300_800n, -86_400n]);
      message['nanos'] = pick(random, [0, 1, 1000, 120_000_000, 999_999_999, 1_000_000_000, -1]);
      return message;
    }
    if (depth > 4) return message;
    for (const field of schema.fields) {
      if (random() < 0.6 && !field.oneof) message[field.localName] = valueOf(random, field, depth);
    }
    return message;
  }

  it('agrees with the exact one on every route, for any response', () => {
    const random = chance(2);
    let short = 0;
    let total = 0;
    for (let round = 0; round < 40; round += 1) {
      for (const route of routes) {
        const schema = route.method.output;
        if (schema.typeName === 'google.api.HttpBody') continue;
        const message = messageOf(random, schema) as Message;
        const attempt = (encode: () => unknown) => {
          try {
            return encode();
          } catch (error) {
            return (error as Error).message;
          }
        };
        const exact = attempt(() => encodeExactly(route, message));
        expect(
          attempt(() => encodeResponse(route, message).body),
          route.method.name,
        ).to.equal(exact);
        total += 1;
        if (encodePlain(schema, message) !== undefined) short += 1;
      }
    }
    expect(short / total).to.be.within(0.2, 0.9);
  });
});
