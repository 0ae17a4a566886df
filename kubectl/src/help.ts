// Generates help from the table of commands.
import { commandOf, commands, commonOptions, type Option } from './command-table.ts';
import { usageError } from './errors.ts';

const left = ({ short, word }: Option, name: string): string =>
  `${short ? `-${short}, ` : '    '}--${name}${word ? ` ${word}` : ''}`;

function lines(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([first]) => first.length));
  return rows.map(([first, second]) => `  ${first.padEnd(width)}   ${second}`).join('\n');
}

const optionLines = (options: Readonly<Record<string, Option>>): string =>
  lines(Object.entries(options).map(([name, option]) => [left(option, name), option.help]));

/** Returns the general help, or that of a command. Throws PluginError `usage` for an unknown command. */
export function helpText(name?: string): string {
  if (name === undefined) {
    const summaries = Object.entries(commands).map(([command, { summary }]) => [command, summary] as const);
    return `kubectl kellet: manage Kellet rollouts, packages, devices and proofs

usage: kubectl kellet COMMAND [arguments] [options]

commands:
${lines(summaries)}

common options:
${optionLines(commonOptions)}

Exit codes: 0 success, 1 failed, 2 invalid command line, 3 not found, 4 denied, 5 not possible in this state,
6 cluster or data plane unreachable, 7 the watched rollout did not succeed.
`;
  }
  const command = commandOf(name);
  if (!command) throw usageError(`unknown command ${name}`);
  const own = Object.keys(command.options).length > 0 ? `\noptions:\n${optionLines(command.options)}\n` : '';
  return `${command.summary}.

usage: kubectl kellet ${name}${command.usage ? ` ${command.usage}` : ''}
${command.details ? `\n${wrap(command.details, 100)}\n` : ''}${own}
common options:
${optionLines(commonOptions)}

examples:
${command.examples.map((example) => `  ${example}`).join('\n')}
`;
}

/** Wraps text at word boundaries. */
function wrap(text: string, width: number): string {
  const result: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line && line.length + 1 + word.length > width) {
      result.push(line);
      line = word;
    } else line = line ? `${line} ${word}` : word;
  }
  return [...result, line].join('\n');
}
