// Readiness checks of anchoring's external dependencies, for processes that only anchor.
import type { Config } from '../config/config.ts';

const responseMilliseconds = 900;

/**
 * Returns a check per configured dependency: it resolves on a successful response and rejects with the reason
 * otherwise.
 */
export function chainChecks(
  config: Pick<Config, 'arcUrl' | 'arcToken' | 'headersUrl'>,
): Record<string, () => Promise<void>> {
  const checks: Record<string, () => Promise<void>> = {};
  if (config.arcUrl !== '') checks['processor'] = () => checkResponds(config.arcUrl, '/v1/policy', config.arcToken);
  if (config.headersUrl !== '') checks['headers'] = () => checkResponds(config.headersUrl, '/tip', '');
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
