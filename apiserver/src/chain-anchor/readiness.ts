// Readiness checks of anchoring's external dependencies, for processes that only anchor.
import type { Config } from '../config/config.ts';
import { NodeRpc } from './headers/node-rpc.ts';

const responseMilliseconds = 900;

/**
 * Returns a check per configured dependency: it resolves on a successful response and rejects with the reason
 * otherwise.
 */
export function chainChecks(
  config: Pick<Config, 'arcUrl' | 'arcToken' | 'headersUrl' | 'nodeRpcUrl'>,
): Record<string, () => Promise<void>> {
  const checks: Record<string, () => Promise<void>> = {};
  if (config.arcUrl !== '') checks['processor'] = () => checkResponds(config.arcUrl, '/v1/policy', config.arcToken);
  const sources: (() => Promise<void>)[] = [];
  if (config.headersUrl !== '') sources.push(() => checkResponds(config.headersUrl, '/tip', ''));
  if (config.nodeRpcUrl !== '') sources.push(() => checkNode(config.nodeRpcUrl));
  // One of them suffices.
  if (sources.length > 0) checks['headers'] = () => Promise.any(sources.map((check) => check())).catch(firstReason);
  return checks;
}

async function checkResponds(baseUrl: string, path: string, token: string): Promise<void> {
  const response = await fetch(baseUrl.replace(/\/+$/, '') + path, {
    headers: token === '' ? {} : { authorization: `Bearer ${token}` },
    signal: AbortSignal.timeout(responseMilliseconds),
  });
  await response.body?.cancel();
  if (!response.ok) throw new Error(`it returned ${response.status}`);
}

async function checkNode(url: string): Promise<void> {
  const late = new Promise<never>((_resolve, reject) =>
    setTimeout(() => reject(new Error('the node does not respond')), responseMilliseconds).unref(),
  );
  await Promise.race([new NodeRpc(url).tip(), late]);
}

function firstReason(error: unknown): never {
  throw error instanceof AggregateError ? error.errors[0] : error;
}
