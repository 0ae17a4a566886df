// Compiles the expressions of rules: CEL with a fixed set of variables, a boolean result and bounded cost. Pure.
import { celEnv, type CelInput, isCelError, parse, plan } from '@bufbuild/cel';
import type { Expr } from '@bufbuild/cel-spec/cel/expr/syntax_pb.js';
import { boundedFunctions } from './bounded-functions.ts';
import { costOf } from './cost.ts';
import { beginEvaluation, boundedPatterns, foldedCharacters, maxFolded, patternProblem } from './patterns.ts';
import { syntaxMistake } from './syntax.ts';
import { literalText, type Problem, TypeCheck } from './type-check.ts';
import { fits, mapOf, nameOf, type Type } from './types.ts';

/** Greatest length of an expression, in bytes of UTF-8. */
const maxExpressionBytes = 2048;

/** An error in an expression; line and column count from 1, columns in characters. */
export interface ExpressionError {
  readonly line: number;
  readonly column: number;
  readonly message: string;
}

/** The values of the variables. `previous` has no timestamp before the second point. */
export interface Bindings {
  readonly device: ReadonlyMap<string, CelInput>;
  readonly numeric: ReadonlyMap<string, number>;
  readonly string: ReadonlyMap<string, string>;
  readonly timestamp: CelInput;
  readonly previous: ReadonlyMap<string, CelInput>;
}

/** The result of an evaluation: an error has a message for the author of the rule. */
export type Outcome = boolean | { readonly error: string };

/** An expression that can be evaluated. */
export interface Compiled {
  (bindings: Bindings): Outcome;
  /** Estimated steps of an evaluation, at most. */
  readonly cost: number;
}

const point: Readonly<Record<string, Type>> = {
  numeric: mapOf('double'),
  string: mapOf('string'),
  timestamp: 'timestamp',
};

/** The declared variables. */
const variables: Readonly<Record<string, Type>> = {
  device: {
    kind: 'record',
    name: 'device',
    fields: { id: 'string', name: 'string', type: 'string', tags: mapOf('string') },
  },
  ...point,
  previous: { kind: 'record', name: 'previous', fields: point },
};

/**
 * Greatest estimated cost of an evaluation, in steps of the evaluator. The most expensive expression that is admitted takes some
 * milliseconds, an ordinary one a microsecond.
 */
const maxCost = 200_000;

const maxErrors = 20;

const env = celEnv({ re2: boundedPatterns, funcs: [...boundedFunctions] });

/** Compiles an expression, or returns its errors in order of position. */
export function compile(text: string): { readonly evaluate: Compiled } | { readonly errors: ExpressionError[] } {
  if (Buffer.byteLength(text) > maxExpressionBytes) {
    return { errors: [{ line: 1, column: 1, message: `an expression has at most ${maxExpressionBytes} bytes` }] };
  }
  const parsed = parseText(text);
  if ('errors' in parsed) return parsed;
  const { expr, sourceInfo } = parsed;
  const offsets = sourceInfo?.positions ?? {};
  const place = (id: bigint): Pick<ExpressionError, 'line' | 'column'> =>
    placeOf(text, offsets[String(id) as keyof typeof offsets] ?? 0);
  const { problems, cost } = judge(expr);
  if (problems.length > 0) {
    const errors = problems.map(({ id, message }) => ({ ...place(id), message }));
    errors.sort((one, other) => one.line - other.line || one.column - other.column);
    return { errors: errors.slice(0, maxErrors) };
  }
  const run = plan(env, expr);
  const evaluate = (bindings: Bindings): Outcome => {
    beginEvaluation();
    const result = withoutStacks(() => run(bindings as unknown as Record<string, CelInput>));
    if (typeof result === 'boolean') return result;
    if (!isCelError(result)) return { error: 'the result is not a boolean' };
    const at = result.exprId === undefined ? undefined : place(result.exprId);
    const message = result.message.slice(0, 400);
    return { error: at ? `line ${at.line}, column ${at.column}: ${message}` : message };
  };
  return { evaluate: Object.assign(evaluate, { cost }) };
}

/** Runs an evaluation, each error of which would take ten times as long with its stack. */
function withoutStacks<T>(evaluate: () => T): T {
  const before = Error.stackTraceLimit;
  Error.stackTraceLimit = 0;
  try {
    return evaluate();
  } finally {
    Error.stackTraceLimit = before;
  }
}

function parseText(text: string): ReturnType<typeof parse> | { errors: ExpressionError[] } {
  if (text.trim() === '') return { errors: [{ line: 1, column: 1, message: 'the expression is empty' }] };
  try {
    return parse(text);
  } catch (error) {
    const { rawMessage, location } = error as { rawMessage?: string; location?: { start: { offset: number } } };
    if (error instanceof RangeError)
      return { errors: [{ line: 1, column: 1, message: 'the expression is nested too deeply' }] };
    const message = (rawMessage ?? (error as Error).message).slice(0, 400);
    const mistake = syntaxMistake(text) ?? { offset: location?.start.offset ?? 0, message };
    return { errors: [{ ...placeOf(text, mistake.offset), message: mistake.message }] };
  }
}

/** Returns what is wrong with an expression, and what an evaluation costs if nothing is. */
function judge(expr: Expr): { readonly problems: readonly Problem[]; readonly cost: number } {
  const checker = new TypeCheck(env, variables);
  const type = checker.check(expr);
  if (checker.problems.length > 0) return { problems: checker.problems, cost: 0 };
  if (!fits(type, 'bool')) {
    return { problems: [{ id: expr.id, message: `the result is ${nameOf(type)}, not bool` }], cost: 0 };
  }
  const found: Problem[] = [];
  let folded = 0;
  const cost = costOf(expr, (call) => {
    const text = literalText(call.args.at(-1));
    folded += foldedCharacters(text ?? '');
    const problem =
      text === undefined
        ? 'the pattern of matches must be a literal'
        : folded > maxFolded
          ? `patterns that ignore case have ranges of more than ${maxFolded} characters`
          : patternProblem(text);
    if (problem !== undefined) found.push({ id: call.args.at(-1)!.id, message: problem });
  });
  if (cost > maxCost) found.push({ id: expr.id, message: `an evaluation may cost ${cost} steps, at most ${maxCost}` });
  return { problems: found, cost };
}

/** Returns the line and column of an offset in UTF-16 units; the parser's offsets may include the space before a token. */
function placeOf(text: string, offset: number): { line: number; column: number } {
  const space = /^\s*(?=\S)/.exec(text.slice(offset))?.[0].length ?? 0;
  const lines = text.slice(0, offset + space).split('\n');
  return { line: lines.length, column: [...lines.at(-1)!].length + 1 };
}
