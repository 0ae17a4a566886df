// The conformance suite of the CEL specification, as far as it applies to rules: no messages, containers and extensions.
import { celEnv, type CelInput, celUint, isCelError, parse, plan } from '@bufbuild/cel';
import type { Value } from '@bufbuild/cel-spec/cel/expr/value_pb.js';
import {
  getConformanceSuite,
  type IncrementalTest,
  type IncrementalTestSuite,
} from '@bufbuild/cel-spec/testdata/tests.js';
import { createRegistry } from '@bufbuild/protobuf';
import { anyUnpack, DurationSchema, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { expect } from 'chai';
import { TypeCheck } from './type-check.ts';
import { nameOf, type Type } from './types.ts';

const suites = [
  ...['basic', 'comparisons', 'conversions', 'fp_math', 'integer_math', 'lists', 'logic', 'macros', 'parse', 'string'],
  'timestamps',
];

const wellKnown = createRegistry(TimestampSchema, DurationSchema);
const env = celEnv();
const equal = plan(env, parse('a == b || (a != a && b != b)'));

const inputs: { readonly [K in NonNullable<Value['kind']['case']>]?: (value: never) => CelInput } = {
  nullValue: () => null,
  boolValue: (value: boolean) => value,
  int64Value: (value: bigint) => value,
  uint64Value: (value: bigint) => celUint(value),
  doubleValue: (value: number) => value,
  stringValue: (value: string) => value,
  bytesValue: (value: Uint8Array) => value,
  objectValue: (value: Parameters<typeof anyUnpack>[0]) => {
    const message = anyUnpack(value, wellKnown);
    if (!message) throw new Error('a message');
    return message;
  },
  listValue: ({ values }: { values: Value[] }) => values.map(inputOf),
  mapValue: ({ entries }: { entries: { key: Value; value: Value }[] }) =>
    new Map(entries.map(({ key, value }) => [inputOf(key) as string, inputOf(value)])),
};

function inputOf({ kind }: Value): CelInput {
  const convert = kind.case && inputs[kind.case];
  if (!convert) throw new Error('not a value of rules');
  return convert(kind.value as never);
}

const casesOf = (suite: IncrementalTestSuite): IncrementalTest[] => [
  ...suite.tests,
  ...suite.suites.flatMap((inner) => casesOf(inner)),
];

const applies = ({ original }: IncrementalTest): boolean =>
  original.container === '' &&
  original.typeEnv.length === 0 &&
  Object.keys(original.bindings).length === 0 &&
  !/google\.|TestAllTypes|optional|enum|\?\./.test(original.expr) &&
  ['value', 'evalError', undefined].includes(original.resultMatcher.case) &&
  !(original.resultMatcher.case === 'value' && original.resultMatcher.value.kind.case === 'typeValue');

/** The name of the reference implementation's type as ours. */
const oursOf = (type: string): string =>
  type
    .replace(/^google\.protobuf\.(\w)/, (_, first: string) => first.toLowerCase())
    .replace(/^type\(.*/, 'type')
    .replace(/^null$/, 'null_type');

describe('CEL', () => {
  for (const suite of getConformanceSuite().suites.filter(({ name }) => suites.includes(name))) {
    for (const test of casesOf(suite).filter(applies)) {
      const name = `${suite.name}/${test.name}`;
      const { expr, resultMatcher } = test.original;
      it(`conforms to ${name}`, () => {
        const conforms = () => {
          const result = plan(env, parse(expr))();
          if (resultMatcher.case === 'evalError') return isCelError(result);
          if (isCelError(result)) return false;
          return equal({ a: result, b: resultMatcher.case === 'value' ? inputOf(resultMatcher.value) : true }) === true;
        };
        let isConforming: boolean;
        try {
          isConforming = conforms();
        } catch {
          isConforming = resultMatcher.case === 'evalError';
        }
        expect(isConforming).to.equal(true);
      });
      if (test.type === undefined || test.original.disableCheck) continue;
      it(`has the type of ${name}`, () => {
        const checker = new TypeCheck(env, {});
        const type: Type = checker.check(parse(expr).expr);
        expect(checker.problems).to.deep.equal([]);
        if (type !== 'dyn' && !nameOf(type).includes('dyn')) {
          expect(nameOf(type)).to.equal(oursOf(test.type!));
        }
      });
    }
  }
});
