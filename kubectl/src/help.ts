// Help, written from the table of commands.
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

/** The text of `help`, or of one command. Throws PluginError `usage` for a command that does not exist. */
export function helpText(name?: string): string {
  if (name === undefined) {
    const summaries = Object.entries(commands).map(([command, { summary }]) => [command, summary] as const);
    return `kubectl kellet: rollouts, packages, devices and proofs of Kellet

usage: kubectl kellet COMMAND [arguments] [options]

commands:
${lines(summaries)}

options of every command:
${optionLines(commonOptions)}

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 not found, 4 denied, 5 not possible in this state,
6 cluster or data plane away, 7 the rollout that was watched did not succeed.
`;
  }
  const command = commandOf(name);
  if (!command) throw usageError(`there is no command ${name}`);
  const own = Object.keys(command.options).length > 0 ? `\noptions:\n${optionLines(command.options)}\n` : '';
  return `${command.summary}.

usage: kubectl kellet ${name}${command.usage ? ` ${command.usage}` : ''}
${command.details ? `\n${wrap(command.details, 100)}\n` : ''}${own}
options of every command:
${optionLines(commonOptions)}

examples:
${command.examples.map((example) => `  ${example}`).join('\n')}
`;
}

/** Text in lines of at most so many characters, broken between words. */
export function wrap(text: string, width: number): string {
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
