import { create, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import { type Everything, EverythingSchema } from '@kellet/proto/es/kellet/testing/v1/transcoding_pb';
import { expect } from 'chai';
import { wireProblem } from './wire-problem.ts';

type Fields = MessageInitShape<typeof EverythingSchema>;
const field = EverythingSchema.field;
const bytesOf = (fields: Fields) => toBinary(EverythingSchema, create(EverythingSchema, fields));
/** Encodes tags and bytes that no library would write. */
const written = (write: (writer: BinaryWriter) => BinaryWriter) => write(new BinaryWriter()).finish();
const hex = (text: string) => Buffer.from(text.replaceAll(' ', ''), 'hex');
/** Encodes a field with these bytes: a message or a string. */
const holding = ({ number }: { number: number }, ...bytes: Uint8Array[]) =>
  written((writer) => bytes.reduce((each, inner) => each.tag(number, WireType.LengthDelimited).bytes(inner), writer));
/** Encodes `nested` to this depth. */
const nested = (depth: number) => {
  let inner: Uint8Array = new Uint8Array(0);
  for (let level = 1; level < depth; level += 1) inner = holding({ number: 3 }, inner);
  return holding(field.nested, inner);
};
/** Encodes an entry of google.protobuf.Struct. */
const entry = (key: string, value: Uint8Array) =>
  holding({ number: 1 }, Buffer.concat([holding({ number: 1 }, Buffer.from(key)), holding({ number: 2 }, value)]));

const whole = {
  name: 'a\u{10348}é',
  nested: { name: 'b', number: -1, child: { words: ['c', ''] }, color: 2 },
  doubleValue: NaN,
  floatValue: Infinity,
  int32Value: -1,
  int64Value: -(2n ** 63n),
  uint32Value: 2 ** 32 - 1,
  uint64Value: 2n ** 64n - 1n,
  sint32Value: -(2 ** 31),
  sint64Value: -1n,
  fixed32Value: 1,
  fixed64Value: 1n,
  sfixed32Value: -1,
  sfixed64Value: -1n,
  boolValue: true,
  bytesValue: hex('00 ff'),
  maybeText: '',
  maybeColor: 0,
  words: ['', 'w'],
  numbers: [0, -1],
  longs: [0n, -1n],
  colors: [0, 1, 2],
  items: [{}, { name: 'i' }],
  times: [{}, { seconds: -62_135_596_800n }, { seconds: 253_402_300_799n, nanos: 999_999_999 }],
  labels: { '': '', ['__proto__']: 'x' },
  readings: { a: Infinity },
  byNumber: { [-1]: 'a' },
  byFlag: { true: 'a' },
  byName: { a: {}, b: { name: 'c' } },
  colorByName: { a: 1 },
  choice: { case: 'nestedChoice', value: { name: 'a' } },
  span: { seconds: -315_576_000_000n, nanos: -999_999_999 },
  mask: { paths: ['a.b'] },
  structValue: { a: [1, 'b', null, { c: true }], '': {} },
  value: { kind: { case: 'nullValue', value: 0 } },
  list: { values: [{ kind: { case: 'listValue', value: {} } }] },
  any: { typeUrl: 'x', value: hex('ff') },
  empty: {},
  boolWrapper: false,
  stringWrapper: '',
  bytesWrapper: hex('00'),
} satisfies Fields;

describe('the error for an invalid binary message', () => {
  for (const [what, bytes] of [
    ['nothing', new Uint8Array(0)],
    ['every field', bytesOf(whole)],
    ['unknown fields', hex('a8 46 01  aa 46 02 61 00  ab 46 08 01 ac 46')],
    ['an unpacked list of numbers', hex('f8 01 01 f8 01 02')],
    ['messages nested 100 deep', nested(99)],
    ['a map entry without a value', holding(field.labels, hex('0a 01 61'))],
    ['a map entry, value first', holding(field.labels, hex('12 01 62 0a 01 61'))],
  ] as const) {
    it(`accepts ${what}`, () => {
      expect(() => fromBinary(EverythingSchema, bytes)).not.to.throw();
      expect(wireProblem(EverythingSchema, bytes)).to.equal(undefined);
    });
  }

  const timestamp = 'must be an RFC 3339 timestamp: of the years 1 to 9999, with nanos from 0 to 999999999';
  const duration = 'must be at most 315576000000 seconds, either way, with nanos below a second and of the same sign';
  for (const [bytes, problem] of [
    [hex('ff'), 'the message: is truncated'],
    [hex('0a ff ff'), 'name: is truncated'],
    [hex('0a 02 61'), 'name: is truncated'],
    [hex('00'), 'the message: cannot be decoded'],
    [hex('0c'), 'name: has the wrong wire type'],
    [hex('08 01'), 'name: has the wrong wire type'],
    [hex('aa 02 02 08'), 'the message: is truncated'],
    [hex('50 01'), 'double_value: has the wrong wire type'],
    [hex('51 00 00'), 'double_value: is truncated'],
    // A nested message whose field exceeds its length.
    [holding(field.nested, hex('0a 05 61')), 'nested.name: is truncated'],
    [Buffer.concat([holding(field.nested, hex('0a 01')), hex('61')]), 'nested.name: is truncated'],
    [Buffer.concat([holding(field.nested, hex('10')), hex('01')]), 'nested.number: is truncated'],
    [holding(field.numbers, hex('01 80')), 'numbers[1]: is truncated'],
    [holding(field.name, hex('61 ff')), 'name: must be valid UTF-8'],
    [holding(field.name, hex('ed a0 80')), 'name: must be valid UTF-8'],
    [holding(field.words, hex('61'), hex('c0 80')), 'words[1]: must be valid UTF-8'],
    [holding(field.labels, hex('0a 01 ff 12 01 61')), 'labels["\ufffd"]: must be valid UTF-8'],
    [holding(field.labels, hex('0a 01 61 12 01 ff')), 'labels["a"]: must be valid UTF-8'],
    [holding(field.labels, hex('0a 01 61'), hex('08 01')), 'labels[""]: has the wrong wire type'],
    [bytesOf({ name: 'a\0' }), 'name: must not contain NUL'],
    [bytesOf({ nested: { child: { words: ['', '\0'] } } }), 'nested.child.words[1]: must not contain NUL'],
    [bytesOf({ items: [{}, { child: { name: '\0' } }] }), 'items[1].child.name: must not contain NUL'],
    [bytesOf({ labels: { 'a\0': '' } }), 'labels["a\\u0000"]: must not contain NUL'],
    [bytesOf({ byName: { a: { name: '\0' } } }), 'by_name["a"].name: must not contain NUL'],
    [bytesOf({ byNumber: { 7: '\0' } }), 'by_number: must not contain NUL'],
    [bytesOf({ choice: { case: 'textChoice', value: '\0' } }), 'text_choice: must not contain NUL'],
    [bytesOf({ stringWrapper: '\0' }), 'string_wrapper: must not contain NUL'],
    [bytesOf({ mask: { paths: ['a', '\0'] } }), 'mask[1]: must not contain NUL'],
    [bytesOf({ color: 7 as Everything['color'] }), 'color: must be one of red, green'],
    [bytesOf({ colors: [1, -1 as Everything['color']] }), 'colors[1]: must be one of red, green'],
    [bytesOf({ colorByName: { a: 7 as Everything['color'] } }), 'color_by_name["a"]: must be one of red, green'],
    [bytesOf({ time: { seconds: 0n, nanos: -1 } }), `time: ${timestamp}`],
    [bytesOf({ time: { seconds: 0n, nanos: 1_000_000_000 } }), `time: ${timestamp}`],
    [bytesOf({ time: { seconds: -62_135_596_801n } }), `time: ${timestamp}`],
    [bytesOf({ times: [{}, { seconds: 253_402_300_800n }] }), `times[1]: ${timestamp}`],
    [holding(field.time, hex('0a 01 00')), 'time: has the wrong wire type'],
    [bytesOf({ span: { seconds: 315_576_000_001n } }), `span: ${duration}`],
    [bytesOf({ span: { seconds: -315_576_000_001n } }), `span: ${duration}`],
    [bytesOf({ span: { seconds: 1n, nanos: -1 } }), `span: ${duration}`],
    [bytesOf({ span: { nanos: 1_000_000_000 } }), `span: ${duration}`],
    [bytesOf({ structValue: { a: ['', { b: 'c\0' }] } }), 'struct_value["a"][1]["b"]: must not contain NUL'],
    [bytesOf({ structValue: { 'a\0': 1 } }), 'struct_value["a\\u0000"]: must not contain NUL'],
    [bytesOf({ structValue: { a: [1, { b: -Infinity }] } }), 'struct_value["a"][1]["b"]: must be a finite number'],
    [bytesOf({ value: { kind: { case: 'numberValue', value: NaN } } }), 'value: must be a finite number'],
    [bytesOf({ value: {} }), 'value: must have a value'],
    [bytesOf({ list: { values: [{ kind: { case: 'boolValue', value: true } }, {}] } }), 'list[1]: must have a value'],
    [holding(field.structValue, entry('a', new Uint8Array(0))), 'struct_value["a"]: must have a value'],
    [holding(field.structValue, holding({ number: 1 }, hex('0a 01 61'))), 'struct_value["a"]: must have a value'],
    [
      holding(field.labels, ...Array.from({ length: 10_001 }, () => hex('0a 01 61'))),
      'labels: must not have more than 10000 entries',
    ],
    [
      holding(field.list, ...Array.from({ length: 100_000 }, () => hex('0a 02 20 01'))),
      'the message: must not hold more than 100000 messages',
    ],
    [
      holding(field.words, ...Array.from({ length: 100_001 }, () => new Uint8Array(0))),
      'the message: must not hold more than 100000 items in its lists',
    ],
    // As packed as they can be.
    [holding(field.numbers, new Uint8Array(100_001)), 'the message: must not hold more than 100000 items in its lists'],
    // Unknown fields, a field that occurs again and again, and the fields of an unknown group.
    [Buffer.from('a84600'.repeat(500_001), 'hex'), 'the message: must not hold more than 500000 fields'],
    [Buffer.from('0a00'.repeat(500_001), 'hex'), 'the message: must not hold more than 500000 fields'],
    [Buffer.from(`ab46${'0800'.repeat(500_000)}`, 'hex'), 'the message: must not hold more than 500000 fields'],
    [nested(100), `nested: must not be nested deeper than 100`],
    [nested(20_000), `nested: must not be nested deeper than 100`],
    // Unterminated groups of an unknown field.
    [Buffer.from('ab46'.repeat(20_000), 'hex'), 'the message: cannot be decoded'],
  ] as const) {
    const shown = Buffer.from(bytes.subarray(0, 24)).toString('hex');
    it(`reports ${problem} in ${shown}`, () => expect(wireProblem(EverythingSchema, bytes)).to.equal(problem));
  }

  it('accepts what the decoder accepts, and rejects every truncation of a message', () => {
    const bytes = bytesOf(whole);
    for (let length = 0; length < bytes.length; length += 1) {
      const piece = bytes.subarray(0, length);
      let isWhole = true;
      try {
        fromBinary(EverythingSchema, piece);
      } catch {
        isWhole = false;
      }
      expect(wireProblem(EverythingSchema, piece) === undefined, `${length} bytes`).to.equal(isWhole);
    }
  });
});
