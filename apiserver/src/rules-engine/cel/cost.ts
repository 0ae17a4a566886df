// Estimates the greatest cost of evaluating an expression, from the limits of points and devices. Pure.
import type { Expr, Expr_Call } from '@bufbuild/cel-spec/cel/expr/syntax_pb.js';
import { literalText } from './type-check.ts';

/** Values of a point, which is also the bound for lists of unknown length. */
const pointValues = 256;
const tags = 64;

/** Steps of functions that read whole strings of up to 4 KiB. */
const textSteps = 40;
const patternSteps = 400;
/** The library makes a formatter of dates for each call with a time zone that is not an offset. */
const zoneSteps = 1000;
const offsetSteps = 10;
/** Of a conversion, which makes an error if it fails. */
const conversionSteps = 10;
const conversions: ReadonlySet<string> = new Set(['int', 'uint', 'double', 'timestamp', 'duration']);

const textFunctions: ReadonlySet<string> = new Set([
  ...['contains', 'startsWith', 'endsWith', 'size', 'bytes', 'string'],
  ...['_+_', '_==_', '_!=_', '_<_', '_<=_', '_>_', '_>=_'],
]);

/** How large a value can be: the characters of a text, or the elements of a list or map, which have an `item`. */
interface Extent {
  readonly count: number;
  readonly item?: Extent | undefined;
  /** Set for a map that has its keys at hand. */
  readonly isMap?: boolean;
}

/** The extents of the variables of the surrounding comprehensions. */
type Scope = ReadonlyMap<string, Extent>;

interface Measure {
  readonly steps: number;
  readonly extent: Extent;
}

const textCharacters = 4096;
/** Longer results of `+` count as copied: repeated doubling would otherwise cost nothing. */
const cheapCharacters = 128 * textCharacters;
/** Keeps estimates finite. */
const most = 1e12;

const scalar: Extent = { count: 1 };
/** A value of a point or device. If it is iterated, a map of such. */
const given: Extent = { count: textCharacters };
const values: Extent = { count: pointValues, item: given, isMap: true };
const variables: ReadonlyMap<string, Extent> = new Map([
  ...([
    ['numeric', values],
    ['string', values],
  ] as const),
  ['previous', { count: 3, item: values }],
]);

const scalarFunctions: ReadonlySet<string> = new Set([
  ...['_&&_', '_||_', '!_', '@in', '@not_strictly_false', '_==_', '_!=_', '_<_', '_<=_', '_>_', '_>=_'],
  ...['contains', 'startsWith', 'endsWith', 'matches', 'size', '_-_', '_*_', '_/_', '_%_', '-_'],
]);

/** Returns the steps; `onPattern` is called for every use of `matches`. */
export const costOf = (expr: Expr, onPattern: (call: Expr_Call) => void): number =>
  Math.ceil(measure(expr, variables, onPattern).steps);

/** Measures an expression. Each part is visited once, so the time is proportional to the length of the text. */
function measure(expr: Expr | undefined, scope: Scope, onPattern: (call: Expr_Call) => void): Measure {
  const { exprKind } = expr ?? { exprKind: { case: undefined } };
  const all = (parts: readonly (Expr | undefined)[]): readonly Measure[] =>
    parts.map((part) => measure(part, scope, onPattern));
  switch (exprKind.case) {
    case 'constExpr': {
      const { constantKind } = exprKind.value;
      const isText = constantKind.case === 'stringValue' || constantKind.case === 'bytesValue';
      return { steps: 1, extent: isText ? { count: constantKind.value.length } : scalar };
    }
    case 'identExpr':
      return { steps: 1, extent: scope.get(exprKind.value.name.replace(/^\./, '')) ?? given };
    case 'selectExpr': {
      const { steps, extent } = measure(exprKind.value.operand, scope, onPattern);
      const isTags = exprKind.value.field === 'tags' && !extent.item;
      return { steps: 1 + steps, extent: isTags ? { count: tags, item: given, isMap: true } : (extent.item ?? given) };
    }
    case 'callExpr': {
      const { function: name, target, args } = exprKind.value;
      if (name === 'matches') onPattern(exprKind.value);
      const parts = all(target ? [target, ...args] : args);
      const extents = parts.map(({ extent }) => extent);
      const extent = resultOf(name, args, extents);
      return { steps: bounded(ownSteps(name, args, extents, extent) + sum(parts)), extent };
    }
    case 'listExpr': {
      const parts = all(exprKind.value.elements);
      return {
        steps: 1 + sum(parts),
        extent: { count: parts.length, item: largestOf(parts.map((part) => part.extent)) },
      };
    }
    case 'structExpr': {
      const { entries } = exprKind.value;
      const parts = all(
        entries.flatMap(({ keyKind, value }) => [keyKind.case === 'mapKey' ? keyKind.value : undefined, value]),
      );
      return {
        steps: 1 + sum(parts),
        extent: { count: entries.length, item: largestOf(parts.map((part) => part.extent)) },
      };
    }
    case 'comprehensionExpr': {
      const { iterRange, iterVar, iterVar2, accuVar, accuInit, loopCondition, loopStep, result } = exprKind.value;
      const [range, initial] = all([iterRange, accuInit]) as [Measure, Measure];
      const item = range.extent.item ?? given;
      const inner = new Map(scope).set(iterVar, item).set(accuVar, initial.extent);
      if (iterVar2 !== '') inner.set(iterVar2, item);
      const condition = measure(loopCondition, inner, onPattern);
      const step = measure(loopStep, inner, onPattern);
      const times = elementsOf(range.extent);
      // The macros add at most an element to their result in each turn.
      const growth = Math.max(0, step.extent.count - initial.extent.count);
      inner.set(accuVar, { count: bounded(initial.extent.count + times * growth), item: step.extent.item });
      const last = measure(result, inner, onPattern);
      const steps = range.steps + initial.steps + times * (2 + condition.steps + step.steps) + last.steps;
      return { steps: bounded(steps), extent: last.extent };
    }
    default:
      return { steps: expr ? 1 : 0, extent: scalar };
  }
}

/** Returns the steps of a call itself, without its operands. */
function ownSteps(name: string, args: readonly Expr[], extents: readonly Extent[], result: Extent): number {
  const longest = Math.max(1, ...extents.map(({ count }) => count / textCharacters));
  if (name === 'matches') return patternSteps * longest;
  if (name === '@in') return extents[1]?.isMap ? 1 : 1 + elementsOf(extents[1]) * sizeOf(extents[1]?.item ?? scalar);
  if (name.startsWith('get') && args.length > 0) return isOffset(literalText(args[0])) ? offsetSteps : zoneSteps;
  if (conversions.has(name)) return conversionSteps;
  if (!textFunctions.has(name) || hasNumber(args)) return 1;
  if (name === '_+_') return result.count > cheapCharacters ? (textSteps * result.count) / textCharacters : textSteps;
  if (name === '_==_' || name === '_!=_') return Math.max(textSteps * longest, ...extents.map(sizeOf));
  return textSteps * longest;
}

/** Returns the extent of the result of a call. */
function resultOf(name: string, args: readonly Expr[], extents: readonly Extent[]): Extent {
  if (scalarFunctions.has(name)) return scalar;
  if (name === '_[_]') return extents[0]?.item ?? given;
  if (name !== '_+_') return largestOf(extents) ?? scalar;
  if (hasNumber(args)) return scalar;
  const count = bounded(extents.reduce((total, extent) => total + extent.count, 0));
  return { count, item: largestOf(extents)?.item };
}

const bounded = (value: number): number => Math.min(value, most);

const sum = (parts: readonly Measure[]): number => parts.reduce((total, { steps }) => total + steps, 0);

/** Returns an extent that each of these fits in. */
const largestOf = (extents: readonly Extent[]): Extent | undefined =>
  extents.length === 0
    ? undefined
    : extents.reduce((one, other) => ({
        count: Math.max(one.count, other.count),
        item: one.item && other.item ? largestOf([one.item, other.item]) : (one.item ?? other.item),
      }));

/** Returns how many elements an iteration visits. */
const elementsOf = (extent: Extent | undefined): number =>
  extent?.item ? extent.count : extent?.count === 0 ? 0 : pointValues;

/** Returns the steps of reading all of a value. */
const sizeOf = ({ count, item }: Extent): number =>
  bounded(item ? count * sizeOf(item) : Math.max(1, (textSteps * count) / textCharacters));

const isOffset = (zone: string | undefined): boolean => zone !== undefined && /^[+-]?\d\d:\d\d$/.test(zone);

/** Reports whether an operand is a number literal, so that the operation is not one on strings. */
const hasNumber = (args: readonly Expr[]): boolean =>
  args.some(({ exprKind }) => {
    const kind = exprKind.case === 'constExpr' ? exprKind.value.constantKind.case : undefined;
    return kind === 'int64Value' || kind === 'doubleValue' || kind === 'uint64Value' || kind === 'boolValue';
  });
