// version: prints the versions of the plugin and, if reachable, of the Kubernetes API.
import manifest from '../../package.json' with { type: 'json' };
import { type Outcome, PluginError } from '../errors.ts';
import { formatValue } from '../output.ts';
import type { Session } from '../session.ts';

/** Runs the command. */
export async function runVersion(session: Session): Promise<Outcome> {
  let kubernetes: string | undefined;
  try {
    kubernetes = await session.cluster.version();
  } catch (error) {
    if (!(error instanceof PluginError)) throw error;
  }
  const format = session.option('output');
  const versions = { plugin: `v${manifest.version}`, node: process.version, kubernetes };
  if (format === 'json' || format === 'yaml') session.terminal.write(formatValue(versions, format));
  else session.terminal.write(`plugin:     ${versions.plugin}\nkubernetes: ${kubernetes ?? 'unreachable'}\n`);
  return 'ok';
}
