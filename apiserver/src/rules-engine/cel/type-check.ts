// The static type check of an expression against the declared variables. Pure. The library's own checker knows only
// constants and variables; its evaluator's function declarations are the overloads used here, so both agree.
import type { CelEnv } from '@bufbuild/cel';
import type { Expr, Expr_Call, Expr_Comprehension, Expr_Select } from '@bufbuild/cel-spec/cel/expr/syntax_pb.js';
import { comparable, fits, fromLibrary, join, listOf, mapOf, nameOf, type Type } from './types.ts';

/** A problem with the node of an expression. */
export interface Problem {
  readonly id: bigint;
  readonly message: string;
}

/** Greatest depth of an expression's tree. */
const maxDepth = 128;

const typeNames: ReadonlySet<string> = new Set(
  ...[['bool', 'int', 'uint', 'double', 'string', 'bytes', 'list', 'map', 'null_type', 'type']],
);

const constantTypes = {
  nullValue: 'null_type',
  boolValue: 'bool',
  int64Value: 'int',
  uint64Value: 'uint',
  doubleValue: 'double',
  stringValue: 'string',
  bytesValue: 'bytes',
  durationValue: 'duration',
  timestampValue: 'timestamp',
} as const satisfies Record<string, Type>;

type Scope = ReadonlyMap<string, Type>;

/** Checks expressions against variables; `env` declares the functions. */
export class TypeCheck {
  readonly problems: Problem[] = [];
  private readonly env: CelEnv;
  private readonly variables: Scope;

  constructor(env: CelEnv, variables: Readonly<Record<string, Type>>) {
    this.env = env;
    this.variables = new Map(Object.entries(variables));
  }

  /** Returns the type of an expression; `dyn` for one with a problem, which is added to `problems`. */
  check(expr: Expr, scope: Scope = this.variables, depth = 1): Type {
    if (depth > maxDepth) return this.problem(expr, `the expression is nested deeper than ${maxDepth} levels`);
    const next = (part: Expr | undefined, inner: Scope = scope): Type =>
      part ? this.check(part, inner, depth + 1) : 'dyn';
    const { exprKind } = expr;
    switch (exprKind.case) {
      case 'constExpr':
        return exprKind.value.constantKind.case === undefined ? 'dyn' : constantTypes[exprKind.value.constantKind.case];
      case 'identExpr':
        return this.identifier(expr, exprKind.value.name, scope);
      case 'selectExpr':
        return this.select(expr, exprKind.value, next(exprKind.value.operand));
      case 'callExpr':
        return this.call(expr, exprKind.value, next);
      case 'listExpr': {
        const elements = exprKind.value.elements.map((element) => next(element));
        return listOf(elements.length === 0 ? 'dyn' : elements.reduce(join));
      }
      case 'structExpr': {
        if (exprKind.value.messageName !== '') return this.problem(expr, 'messages cannot be constructed');
        const keys = exprKind.value.entries.map(({ keyKind }) =>
          keyKind.case === 'mapKey' ? next(keyKind.value) : 'string',
        );
        const values = exprKind.value.entries.map(({ value }) => next(value));
        return keys.length === 0 ? mapOf('dyn', 'dyn') : mapOf(values.reduce(join), keys.reduce(join));
      }
      case 'comprehensionExpr':
        return this.comprehension(exprKind.value, next, scope);
      default:
        return this.problem(expr, 'the expression is incomplete');
    }
  }

  private problem(expr: Expr, message: string): Type {
    this.problems.push({ id: expr.id, message });
    return 'dyn';
  }

  private identifier(expr: Expr, name: string, scope: Scope): Type {
    const type = scope.get(name.replace(/^\./, ''));
    if (type !== undefined) return type;
    if (typeNames.has(name)) return 'type';
    return this.problem(
      expr,
      `there is no variable '${name}'; the variables are ${[...this.variables.keys()].join(', ')}`,
    );
  }

  private select(expr: Expr, { field, testOnly }: Expr_Select, operand: Type): Type {
    const type = this.member(expr, operand, field);
    return testOnly ? 'bool' : type;
  }

  private member(expr: Expr, operand: Type, field: string): Type {
    if (operand === 'dyn') return 'dyn';
    if (typeof operand === 'string' || operand.kind === 'list') {
      return this.problem(expr, `a value of type ${nameOf(operand)} has no field '${field}'`);
    }
    if (operand.kind === 'map') {
      if (fits('string', operand.key)) return operand.value;
      return this.problem(expr, `the keys of ${nameOf(operand)} are not strings`);
    }
    const fields = Object.keys(operand.fields);
    return Object.hasOwn(operand.fields, field)
      ? operand.fields[field]!
      : this.problem(expr, `${operand.name} has no field '${field}'; its fields are ${fields.join(', ')}`);
  }

  private call(expr: Expr, call: Expr_Call, next: (part: Expr | undefined) => Type): Type {
    const target = call.target && next(call.target);
    const types = call.args.map((arg) => next(arg));
    const [first = 'dyn', second = 'dyn', third = 'dyn'] = types;
    const mismatch = () => this.problem(expr, noOverload(call.function, target, types));
    switch (call.function) {
      case '_&&_':
      case '_||_':
      case '@not_strictly_false':
        return types.every((type) => fits(type, 'bool')) ? 'bool' : mismatch();
      case '_?_:_':
        return fits(first, 'bool') ? join(second, third) : mismatch();
      case '_==_':
      case '_!=_':
        return comparable(first, second) ? 'bool' : mismatch();
      case '@in':
        return isIn(first, second) ? 'bool' : mismatch();
      case '_[_]':
        return this.index(expr, call.args[1], first, second) ?? mismatch();
      case '_+_':
        if (isList(first) && isList(second))
          return listOf(first.element === 'dyn' ? second.element : join(first.element, second.element));
    }
    const group = this.env.funcs.find(call.function);
    if (!group) return this.problem(expr, `there is no function '${operatorName(call.function)}'`);
    const results = [...group].flatMap((overload) => {
      const isMethod = overload.target !== undefined;
      if (isMethod !== (target !== undefined) || overload.arguments.length !== types.length) return [];
      if (isMethod && !fits(target!, fromLibrary(overload.target))) return [];
      const isMatch = overload.arguments.every((wanted, index) => fits(types[index]!, fromLibrary(wanted)));
      return isMatch ? [fromLibrary(overload.result)] : [];
    });
    return results.length === 0 ? mismatch() : results.reduce(join);
  }

  private index(expr: Expr, key: Expr | undefined, operand: Type, keyType: Type): Type | undefined {
    if (operand === 'dyn') return 'dyn';
    if (typeof operand === 'string') return undefined;
    if (operand.kind === 'list') return comparable(keyType, 'int') ? operand.element : undefined;
    if (operand.kind === 'map') return fits(keyType, operand.key) ? operand.value : undefined;
    const name = literalText(key);
    return name === undefined
      ? this.problem(expr, `a field of ${operand.name} must be named by a literal`)
      : this.member(expr, operand, name);
  }

  private comprehension(
    { iterRange, iterVar, iterVar2, accuVar, accuInit, loopCondition, loopStep, result }: Expr_Comprehension,
    next: (part: Expr | undefined, inner?: Scope) => Type,
    scope: Scope,
  ): Type {
    const range = next(iterRange);
    const inner = new Map(scope);
    if (range === 'dyn') {
      inner.set(iterVar, 'dyn');
      if (iterVar2 !== '') inner.set(iterVar2, 'dyn');
    } else if (typeof range !== 'string' && range.kind !== 'record') {
      const [one, two]: [Type, Type] = range.kind === 'list' ? ['int', range.element] : [range.key, range.value];
      inner.set(iterVar, iterVar2 === '' && range.kind === 'list' ? two : one);
      if (iterVar2 !== '') inner.set(iterVar2, two);
    } else return this.problem(iterRange!, `a value of type ${nameOf(range)} has no elements`);
    const initial = next(accuInit);
    inner.set(accuVar, initial);
    next(loopCondition, inner);
    const step = next(loopStep, inner);
    inner.set(accuVar, isList(step) ? step : join(initial, step));
    return next(result, inner);
  }
}

const isList = (type: Type): type is { kind: 'list'; element: Type } =>
  typeof type !== 'string' && type.kind === 'list';

function isIn(element: Type, range: Type): boolean {
  if (range === 'dyn') return true;
  if (typeof range === 'string' || range.kind === 'record') return false;
  return comparable(element, range.kind === 'list' ? range.element : range.key);
}

/** Returns the text of a string literal, or undefined for any other expression. */
export function literalText(expr: Expr | undefined): string | undefined {
  if (expr?.exprKind.case !== 'constExpr') return undefined;
  const { constantKind } = expr.exprKind.value;
  return constantKind.case === 'stringValue' ? constantKind.value : undefined;
}

/** Returns an operator as it is written, or the name of a function. */
const operatorName = (name: string): string =>
  name === '_?_:_' ? '?:' : name === '_[_]' ? '[]' : name.replace(/^@|^_|_$/g, '').replace(/_$/, '');

function noOverload(name: string, target: Type | undefined, types: readonly Type[]): string {
  const given = `(${types.map(nameOf).join(', ')})`;
  const mixed = types.includes('int') && types.includes('double');
  const hint = mixed ? '; write a whole number as a double, such as 2.0' : '';
  if (target !== undefined) return `${nameOf(target)} has no function '${name}' for ${given}`;
  return `there is no '${operatorName(name)}' for ${given}${hint}`;
}
