// version: prints the versions of the plugin and, if reachable, of the Kubernetes API.
import { readFile } from 'node:fs/promises';
import { PluginError, type Outcome } from '../errors.ts';
import { formatValue } from '../output.ts';
import type { Session } from '../session.ts';

/** Runs the command. */
export async function runVersion(session: Session): Promise<Outcome> {
  const manifest = JSON.parse(await readFile(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
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
