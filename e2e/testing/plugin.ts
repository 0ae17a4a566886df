// Runs kubectl-kellet in this process, because loading the Kubernetes library for every call would dominate the run
// time. Process-level behaviour (signals, terminal, completion) is tested with the program itself.
import { join } from 'node:path';
import { checkout } from '../../dev/stack/paths.ts';
import { exitCodes } from '../../kubectl/src/errors.ts';
import { runPlugin } from '../../kubectl/src/plugin.ts';

/** Result of a run of the plugin. */
export interface PluginRun {
  code: number;
  stdout: string;
  stderr: string;
}

/** The plugin's program. */
export const pluginProgram = join(checkout, 'kubectl/src/main.ts');

/** Runs the plugin without a terminal. Returns the result, whatever the exit code. */
export async function callPlugin(
  args: readonly string[],
  options: { kubeconfig: string; environment?: Record<string, string> },
): Promise<PluginRun> {
  let stdout = '';
  let stderr = '';
  const outcome = await runPlugin(['--kubeconfig', options.kubeconfig, ...args], {
    terminal: {
      write: (text) => void (stdout += text),
      control: (sequence) => void (stdout += sequence),
      say: (line) => void (stderr += `${line}\n`),
      draw: (text) => void (stderr += text),
      ...{ isInteractive: false, showsProgress: false, hasColor: false, hasUnicode: false, columns: 80 },
    },
    environment: options.environment ?? {},
    signal: new AbortController().signal,
  });
  return { code: exitCodes[outcome], stdout, stderr };
}
