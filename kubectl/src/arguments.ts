// Parses the command line into command, arguments and options.
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { type CommandName, commandOf, commands, commonOptions, type Option, optionsOf } from './command-table.ts';
import { usageError } from './errors.ts';

/** A valid command line. */
export interface CommandLine {
  readonly command: CommandName;
  readonly args: readonly string[];
  /** Values by long name. A flag has the value 'true'; a repeated option has all its values. */
  readonly options: ReadonlyMap<string, readonly string[]>;
}

type ParserOptions = NonNullable<ParseArgsConfig['options']>;

const parserOption = ({ short, word, repeated }: Option): ParserOptions[string] => ({
  type: word === undefined ? 'boolean' : 'string',
  ...(short === undefined ? {} : { short }),
  ...(repeated ? { multiple: true } : {}),
});

/** The options of all commands, because the command is known only after parsing. */
const everyOption: ParserOptions = Object.fromEntries(
  [commonOptions, ...Object.values(commands).map(({ options }) => options)].flatMap((options) =>
    Object.entries<Option>(options).map(([name, option]) => [name, parserOption(option)]),
  ),
);

/** Parses a command line. Throws PluginError `usage` if it is invalid. */
export function parseCommandLine(argv: readonly string[]): CommandLine {
  const { values, positionals } = parse(argv);
  const [name, ...args] = positionals;
  const options = new Map(
    Object.entries(values).map(([key, value]) => [key, Array.isArray(value) ? value.map(String) : [String(value)]]),
  );
  if (name === undefined) return { command: 'help', args: [], options };
  const command = commandOf(name);
  if (!command) throw usageError(`unknown command ${name}`);
  if (options.has('help')) return { command: 'help', args: [name], options };
  const known = optionsOf(command);
  const foreign = [...options.keys()].find((option) => !Object.hasOwn(known, option));
  if (foreign !== undefined) throw usageError(`${name} has no option --${foreign}`, name);
  for (const [option, given] of options) {
    const allowed = known[option]?.values;
    if (typeof allowed !== 'object' || known[option]!.mayBeFile) continue;
    const wrong = given.find((value) => !allowed.includes(value));
    if (wrong !== undefined) throw usageError(`--${option} takes ${list(allowed)}, not ${wrong}`, name);
  }
  const [least, most] = command.takes;
  if (args.length < least) throw usageError(`${name} needs ${command.usage}`, name);
  if (args.length > most)
    throw usageError(`${name} takes ${command.usage || 'no arguments'}, not ${args.join(' ')}`, name);
  return { command: name as CommandName, args, options };
}

function parse(argv: readonly string[]) {
  try {
    return parseArgs({ args: [...argv], options: everyOption, allowPositionals: true, strict: true });
  } catch (error) {
    const { message, code } = error as { message: string; code?: string };
    if (!code?.startsWith('ERR_PARSE_ARGS')) throw error;
    throw usageError(message.split('. ')[0]!.replace(/^./, (letter) => letter.toLowerCase()));
  }
}

const list = (words: readonly string[]): string => `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`;

/** Returns the value of an option, or undefined. */
export const optionOf = (line: CommandLine, name: string): string | undefined => line.options.get(name)?.at(-1);

/** Returns the value of an integer option. Throws PluginError `usage` if it is invalid or out of range. */
export function numberOption(line: CommandLine, name: string, least: number, most: number): number | undefined {
  const text = optionOf(line, name);
  if (text === undefined) return undefined;
  const value = Number(text);
  if (!/^\d+$/.test(text) || value < least || value > most) {
    throw usageError(`--${name} takes a whole number from ${least} to ${most}, not ${text}`, line.command);
  }
  return value;
}
