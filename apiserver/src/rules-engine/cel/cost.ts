// Estimates the greatest cost of evaluating an expression, from the limits of points and devices. Pure.
import type { Expr, Expr_Call } from '@bufbuild/cel-spec/cel/expr/syntax_pb.js';

/** Values of a point, which is also the bound for lists of unknown length. */
const pointValues = 256;
const tags = 64;

/** Steps of functions that read whole strings of up to 4 KiB. */
const textSteps = 40;
const patternSteps = 400;

const textFunctions: ReadonlySet<string> = new Set(
  ...[
    [
      'contains',
      'startsWith',
      'endsWith',
      'size',
      '_+_',
      '_==_',
      '_!=_',
      '_<_',
      '_<=_',
      '_>_',
      '_>=_',
      'bytes',
      'string',
    ],
  ],
);

/** Returns the steps; `onPattern` is called for every use of `matches`. */
export function costOf(expr: Expr, onPattern: (call: Expr_Call) => void): number {
  const cost = (part: Expr | undefined): number => (part ? costOf(part, onPattern) : 0);
  const sum = (parts: readonly (Expr | undefined)[]): number => parts.reduce((total, part) => total + cost(part), 0);
  const { exprKind } = expr;
  switch (exprKind.case) {
    case 'selectExpr':
      return 1 + cost(exprKind.value.operand);
    case 'callExpr': {
      const { function: name, target, args } = exprKind.value;
      if (name === 'matches') onPattern(exprKind.value);
      const own = name === 'matches' ? patternSteps : textFunctions.has(name) && !hasNumber(args) ? textSteps : 1;
      const list = name === '@in' ? sizeOf(args[1]) : 0;
      return own + list + cost(target) + sum(args);
    }
    case 'listExpr':
      return 1 + sum(exprKind.value.elements);
    case 'structExpr':
      return (
        1 +
        sum(
          exprKind.value.entries.flatMap(({ keyKind, value }) => [
            keyKind.case === 'mapKey' ? keyKind.value : undefined,
            value,
          ]),
        )
      );
    case 'comprehensionExpr': {
      const { iterRange, accuInit, loopCondition, loopStep, result } = exprKind.value;
      return cost(iterRange) + cost(accuInit) + sizeOf(iterRange) * (2 + sum([loopCondition, loopStep])) + cost(result);
    }
    default:
      return 1;
  }
}

/** Reports whether an operand is a number literal, so that the operation is not one on strings. */
const hasNumber = (args: readonly Expr[]): boolean =>
  args.some(({ exprKind }) => {
    const kind = exprKind.case === 'constExpr' ? exprKind.value.constantKind.case : undefined;
    return kind === 'int64Value' || kind === 'doubleValue' || kind === 'uint64Value' || kind === 'boolValue';
  });

/** Returns the greatest number of elements of a list or map. */
function sizeOf(expr: Expr | undefined): number {
  if (!expr) return 0;
  const { exprKind } = expr;
  if (exprKind.case === 'listExpr') return exprKind.value.elements.length;
  if (exprKind.case === 'structExpr') return exprKind.value.entries.length;
  if (exprKind.case === 'comprehensionExpr') return sizeOf(exprKind.value.iterRange);
  if (exprKind.case === 'selectExpr' && exprKind.value.field === 'tags') return tags;
  if (exprKind.case === 'callExpr' && exprKind.value.function === '_+_') {
    return exprKind.value.args.reduce((total, arg) => total + sizeOf(arg), 0);
  }
  if (exprKind.case === 'callExpr' && exprKind.value.function === '_?_:_') {
    return Math.max(...exprKind.value.args.slice(1).map(sizeOf));
  }
  return pointValues;
}
