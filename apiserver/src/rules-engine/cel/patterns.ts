// The patterns of `matches`: RE2 takes time in proportion to the text times the size of the pattern, and memory for the
// states that it has met. Both are limited here.
import { RE2JS } from '@bufbuild/re2';
import { LRUCache } from 'lru-cache';

/** Greatest number of instructions that a pattern is compiled to: 1000 is what `(a|b){200}` takes. */
const maxInstructions = 1000;

/** Greatest estimated size of a pattern before it is compiled, in instructions and ranges of characters. */
const maxUnits = 2000;

/** Ranges of a Unicode class such as \pL, which each repetition copies. */
const unitsOfClass = 50;

/**
 * Greatest number of characters in the ranges of an expression's patterns that ignore case: the compiler looks up each in a seventh of
 * a microsecond. It knows no case beyond the last one here.
 */
export const maxFolded = 50_000;
const lastFolded = 0x1e943;

/**
 * Greatest number of characters times instructions that the patterns of an evaluation may read: some milliseconds. One
 * text of 4 KiB fits with a pattern of 60 instructions, or 250 texts of 50 characters with one of 20.
 */
const maxSteps = 250_000;

/** A pattern keeps a state for each new one it meets, and for each a transition for each new character. */
const maxStates = 64;
const maxCharacters = 8192;

interface Pattern {
  readonly compiled: RE2JS;
  readonly instructions: number;
  /** Read since the states were forgotten. */
  characters: number;
}

/** Only literals reach here, so each belongs to a compiled expression. */
const patterns = new LRUCache<string, Pattern>({ max: 500 });

/** Steps of the running evaluation, which is synchronous. */
let steps = 0;

/** Begins to count the steps of an evaluation. */
export const beginEvaluation = (): void => void (steps = 0);

/** The engine of `matches`. Its patterns throw when an evaluation takes too many steps. */
export const boundedPatterns = {
  compile: (text: string) => ({ test: (value: string) => test(patternOf(text), value) }),
};

/** Returns at least as many characters as the ranges of a pattern have, 0 if it does not ignore case. */
export function foldedCharacters(text: string): number {
  if (!/\(\?[a-zA-Z]*i/.test(text)) return 0;
  let characters = 0;
  for (const { index } of text.matchAll(/-/g)) {
    characters += Math.max(0, Math.min(codeAfter(text, index), lastFolded) - codeBefore(text, index));
  }
  return characters;
}

/** Returns the character that follows, also one that is given by its number. */
function codeAfter(text: string, index: number): number {
  const numbered = /\\(?:x\{([0-9a-f]+)\}|x([0-9a-f]{2})|([0-7]{1,3}))/iy;
  numbered.lastIndex = index + 1;
  const [, braced, hexadecimal = braced, octal] = numbered.exec(text) ?? [];
  if (hexadecimal !== undefined) return parseInt(hexadecimal, 16);
  if (octal !== undefined) return parseInt(octal, 8);
  return text.codePointAt(text[index + 1] === '\\' ? index + 2 : index + 1) ?? 0;
}

/** Returns the character that precedes if it stands there itself, otherwise 0. */
function codeBefore(text: string, index: number): number {
  const last = text.charCodeAt(index - 1);
  if (Number.isNaN(last) || last < 0x80) return 0;
  const isPair = last >= 0xdc00 && last <= 0xdfff;
  return text.codePointAt(isPair ? index - 2 : index - 1)!;
}

/** Returns why a pattern is not admitted, or undefined. */
export function patternProblem(text: string): string | undefined {
  if (unitsOf(text) > maxUnits) return 'the pattern is too large';
  try {
    return patternOf(text).instructions > maxInstructions ? 'the pattern is too large' : undefined;
  } catch (error) {
    return `the pattern is not RE2: ${(error as Error).message.slice(0, 200)}`;
  }
}

function patternOf(text: string): Pattern {
  const known = patterns.get(text);
  if (known) return known;
  const compiled = RE2JS.compile(text);
  const pattern = { compiled, instructions: compiled.re2().prog.numInst(), characters: 0 };
  if (pattern.instructions <= maxInstructions) patterns.set(text, pattern);
  return pattern;
}

/** Estimates the size of a compiled pattern, so that one which is far too large costs nothing. */
function unitsOf(text: string): number {
  const classes = text.match(/\\[pP]/g)?.length ?? 0;
  const repeats = (text.match(/\d+(?=\})/g) ?? []).reduce((sum, count) => sum + Number(count), 0);
  return text.length + classes * unitsOfClass + repeats * (classes > 0 ? unitsOfClass : 1);
}

function test(pattern: Pattern, value: string): boolean {
  steps += value.length * pattern.instructions;
  if (steps > maxSteps) throw new Error('the texts are too long for the patterns that they are compared with');
  const matches = pattern.compiled.test(value);
  pattern.characters += value.length;
  if (pattern.compiled.re2().dfa.stateCount > maxStates || pattern.characters > maxCharacters) {
    pattern.compiled.reset();
    pattern.characters = 0;
  }
  return matches;
}
