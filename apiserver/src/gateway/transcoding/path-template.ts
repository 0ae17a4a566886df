// Path templates of google.api.http: parsing, and the values of variables. Grammar: "/" Segments [":" LITERAL],
// Segments of `*`, `**`, LITERAL or `{field.path[=Segments]}` (google/api/http.proto).

/** A segment of a pattern: exactly one path segment, the rest of the path, or this text. */
export type Segment = { kind: 'any' } | { kind: 'rest' } | { kind: 'literal'; text: string };

/** A part of the path bound to a request field. */
export interface Variable {
  /** Names from the request message to a scalar field. */
  readonly fieldPath: readonly string[];
  /** First captured segment. */
  readonly start: number;
  /** Segment after the last captured one; -1 means up to the end of the path. */
  readonly end: number;
}

/** A parsed template. */
export interface Template {
  readonly segments: readonly Segment[];
  /** The text after the last colon; empty if there is none. */
  readonly verb: string;
  readonly variables: readonly Variable[];
}

/**
 * Parses a template. Throws an Error with the position: templates are part of the contract, so a malformed one is a
 * bug.
 */
export function parseTemplate(text: string): Template {
  const segments: Segment[] = [];
  const variables: Variable[] = [];
  let at = 0;

  const fail = (why: string): never => {
    throw new Error(`path template ${JSON.stringify(text)}: ${why} at ${at}`);
  };
  const take = (character: string): boolean => {
    if (text[at] !== character) return false;
    at += 1;
    return true;
  };
  const word = (pattern: RegExp, what: string): string => {
    pattern.lastIndex = at;
    const match = pattern.exec(text)?.[0];
    if (!match) return fail(`expected ${what}`);
    at += match.length;
    return match;
  };
  const parseSegment = (insideVariable: boolean): void => {
    if (segments.at(-1)?.kind === 'rest') fail('`**` must be last');
    if (take('*')) {
      segments.push(take('*') ? { kind: 'rest' } : { kind: 'any' });
    } else if (text[at] === '{') {
      if (insideVariable) fail('a variable inside a variable');
      parseVariable();
    } else {
      segments.push({ kind: 'literal', text: word(/[A-Za-z0-9\-_.~!$&'()+,;@%]+/y, 'a segment') });
    }
  };
  const parseVariable = (): void => {
    at += 1;
    const fieldPath = [word(/[A-Za-z_][A-Za-z0-9_]*/y, 'a field name')];
    while (take('.')) fieldPath.push(word(/[A-Za-z_][A-Za-z0-9_]*/y, 'a field name'));
    if (variables.some((other) => other.fieldPath.join('.') === fieldPath.join('.'))) fail('a field bound twice');
    const start = segments.length;
    if (take('=')) {
      do parseSegment(true);
      while (take('/'));
    } else {
      segments.push({ kind: 'any' });
    }
    if (!take('}')) fail('expected }');
    variables.push({ fieldPath, start, end: segments.at(-1)?.kind === 'rest' ? -1 : segments.length });
  };

  if (!take('/')) fail('expected /');
  do parseSegment(false);
  while (take('/'));
  const verb = take(':') ? word(/[A-Za-z0-9\-_.~]+/y, 'a verb') : '';
  if (at !== text.length) fail('unexpected text');
  return { segments, verb, variables };
}

/**
 * Returns the value of a variable from raw path segments. A single segment is fully decoded; several keep their
 * slashes, and encoded slashes remain `%2F` to tell them apart. Returns undefined if the percent-encoding is malformed.
 */
export function capture(variable: Variable, segments: readonly string[]): string | undefined {
  const end = variable.end < 0 ? segments.length : variable.end;
  try {
    if (variable.end >= 0 && end - variable.start === 1) return decodeURIComponent(segments[variable.start]!);
    return segments
      .slice(variable.start, end)
      .map((segment) =>
        segment
          .split(/(%2[fF])/)
          .map((part, index) => (index % 2 === 1 ? part : decodeURIComponent(part)))
          .join(''),
      )
      .join('/');
  } catch {
    return undefined;
  }
}
