// Shell completion: scripts for three shells that call `kubectl-kellet __complete` with kubectl's protocol.
import { type ArgumentValues, commandOf, commands, commonOptions, type Option, optionsOf } from './command-table.ts';
import { usageError } from './errors.ts';

/** Supported shells. */
export const shells = ['bash', 'zsh', 'fish'] as const;

/** Completions at the cursor: known words, and the kind of names to look up. */
export interface Candidates {
  readonly words: readonly string[];
  readonly lookup: Exclude<ArgumentValues, 'shells' | 'commands'> | 'namespaces' | 'contexts';
}

const none: Candidates = { words: [], lookup: undefined };

/** Returns the completions of the last word. */
export function candidates(words: readonly string[]): Candidates {
  const before = words.slice(0, -1);
  const current = words.at(-1) ?? '';
  const read = readBefore(before);
  const command = read.command === undefined ? undefined : commandOf(read.command);
  const options: Readonly<Record<string, Option>> = command ? optionsOf(command) : commonOptions;
  if (read.open !== undefined) return valuesOf(options[read.open]);
  const [name, value] = current.split('=', 2);
  if (name!.startsWith('--') && value !== undefined) {
    const { words: values, lookup } = valuesOf(options[name!.slice(2)]);
    return { words: values.map((word) => `${name}=${word}`), lookup };
  }
  if (current.startsWith('-')) return { words: Object.keys(options).map((option) => `--${option}`), lookup: undefined };
  if (read.command === undefined) return { words: Object.keys(commands), lookup: undefined };
  if (!command || read.args >= command.takes[1]) return none;
  const asked = command.values[read.args === 0 ? 0 : 1];
  if (asked === 'shells') return { words: shells, lookup: undefined };
  if (asked === 'commands') return { words: Object.keys(commands), lookup: undefined };
  return { words: [], lookup: asked };
}

function valuesOf(option: Option | undefined): Candidates {
  if (typeof option?.values === 'object') return { words: option.values, lookup: undefined };
  if (option?.values !== undefined) return { words: [], lookup: option.values };
  return option?.word === 'FILE' ? { words: [], lookup: 'files' } : none;
}

/** Returns the command before the cursor, its number of arguments, and the option whose value is being completed. */
function readBefore(words: readonly string[]): { command?: string; args: number; open?: string } {
  const all: [string, Option][] = [commonOptions, ...Object.values(commands).map(({ options }) => options)].flatMap(
    (options) => Object.entries<Option>(options),
  );
  const positionals: string[] = [];
  let open: string | undefined;
  for (const word of words) {
    if (open !== undefined) {
      open = undefined;
    } else if (word.startsWith('-') && word !== '-') {
      const found = all.find(([name, { short }]) => word === `--${name}` || word === `-${short}`);
      if (found?.[1].word !== undefined) [open] = found;
    } else positionals.push(word);
  }
  const [command, ...args] = positionals;
  return { ...(command === undefined ? {} : { command }), args: args.length, ...(open === undefined ? {} : { open }) };
}

/** Directives of kubectl's completion protocol, which is cobra's. */
export const directives = { files: 0, nothingElse: 4 } as const;

/** Formats the output of `__complete`: one word per line, then the directive. */
export const completionText = (words: readonly string[], prefix: string, directive: number): string =>
  [...words.filter((word) => word.startsWith(prefix)), `:${directive}`, ''].join('\n');

const bash = `# bash completion of kubectl-kellet
_kubectl_kellet() {
  local line directive=4
  COMPREPLY=()
  while IFS= read -r line; do
    case "$line" in
      :*) directive="\${line#:}" ;;
      ?*) COMPREPLY+=("$line") ;;
    esac
  done < <(kubectl-kellet __complete "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  if [ "$directive" = 0 ] && [ "\${#COMPREPLY[@]}" = 0 ]; then
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "\${COMP_WORDS[COMP_CWORD]}")
  fi
}
complete -F _kubectl_kellet kubectl-kellet
`;

const zsh = `#compdef kubectl-kellet
# zsh completion of kubectl-kellet
_kubectl_kellet() {
  local line directive=4
  local -a found
  for line in "\${(@f)$(kubectl-kellet __complete "\${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case "$line" in
      :*) directive="\${line#:}" ;;
      ?*) found+=("$line") ;;
    esac
  done
  if (( \${#found} )); then compadd -a found
  elif [ "$directive" = 0 ]; then _files
  fi
}
compdef _kubectl_kellet kubectl-kellet
`;

const fish = `# fish completion of kubectl-kellet
function __kubectl_kellet_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l found (kubectl-kellet __complete $words[2..-1] 2>/dev/null)
  string match -v ':*' -- $found
  if contains -- ':0' $found
    __fish_complete_path (commandline -ct)
  end
end
complete -c kubectl-kellet -f -a '(__kubectl_kellet_complete)'
`;

/** Returns the completion script of a shell. Throws PluginError `usage` for an unsupported shell. */
export function completionScript(shell: string): string {
  const scripts: Readonly<Record<string, string>> = { bash, zsh, fish };
  if (!Object.hasOwn(scripts, shell))
    throw usageError(`unsupported shell ${shell}: must be ${shells.join(', ')}`, 'completion');
  return scripts[shell]!;
}
