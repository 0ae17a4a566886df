// Parses the command line and runs the command. Commands are loaded lazily.
import { type CommandLine, parseCommandLine } from './arguments.ts';
import { completionScript } from './completion.ts';
import { type Outcome, PluginError } from './errors.ts';
import { painter } from './format/paint.ts';
import { helpText } from './help.ts';
import { guarded, type Terminal } from './terminal.ts';

/** Environment of a run besides the command line. */
export interface PluginParts {
  readonly terminal: Terminal;
  readonly environment: NodeJS.ProcessEnv;
  /** Aborts when the user interrupts. */
  readonly signal: AbortSignal;
}

/** Runs the plugin. Errors are printed on standard error. */
export async function runPlugin(argv: readonly string[], parts: PluginParts): Promise<Outcome> {
  const terminal = guarded(parts.terminal);
  try {
    return await runCommand(parseCommandLine(argv), { ...parts, terminal });
  } catch (error) {
    const paint = painter(terminal.hasColor && terminal.showsProgress);
    const isExpected = error instanceof PluginError;
    const text = error instanceof Error ? (isExpected ? error.message : (error.stack ?? error.message)) : String(error);
    terminal.say(`${paint('red', 'error:')} ${text}`);
    if (!isExpected) return 'failed';
    if (error.hint) terminal.say(error.hint);
    return error.outcome;
  }
}

async function runCommand(line: CommandLine, { terminal, environment, signal }: PluginParts): Promise<Outcome> {
  const { command, args } = line;
  if (command === 'help') {
    terminal.write(helpText(args[0]));
    return 'ok';
  }
  if (command === 'completion') {
    terminal.write(completionScript(args[0]!));
    return 'ok';
  }
  const { Session } = await import('./session.ts');
  const session = new Session(line, terminal, environment, signal);
  switch (command) {
    case 'status':
      return (await import('./commands/status.ts')).runStatus(session);
    case 'plan':
      return (await import('./commands/plan.ts')).runPlan(session);
    case 'devices':
      return (await import('./commands/devices.ts')).runDevices(session);
    case 'proof':
      return (await import('./commands/proof.ts')).runProof(session);
    case 'upload':
      return (await import('./commands/upload.ts')).runUpload(session);
    case 'version':
      return (await import('./commands/version.ts')).runVersion(session);
    default:
      return (await import('./commands/verbs.ts')).runVerb(session, command);
  }
}
