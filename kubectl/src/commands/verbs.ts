// pause, resume, rollback, approve, cancel, retry, skip: sent to the data plane, which stores their effect; spec is not
// changed.
import { setTimeout as sleep } from 'node:timers/promises';
import { numberOption } from '../arguments.ts';
import type { CommandName } from '../command-table.ts';
import type { DataPlane } from '../data-plane.ts';
import { type Outcome, PluginError, usageError } from '../errors.ts';
import { formatValue, qualifiedName } from '../output.ts';
import { readRollout, rolloutIdOf } from '../rollouts.ts';
import type { Session } from '../session.ts';

/** A rollout as returned by the API, as far as it is shown. */
export interface RolloutResponse {
  readonly rollout_id: string;
  readonly status?: string;
  readonly message?: string;
  readonly counts?: { readonly scheduled?: number; readonly succeeded?: number };
  readonly updated_at?: string;
}

/** Rollout commands of the API, and the text printed on success. */
export const verbs = {
  pause: 'paused',
  resume: 'resumed',
  rollback: 'rolling back',
  approve: 'approved',
  cancel: 'cancelled',
  retry: 'retrying',
  skip: 'devices skipped',
} as const satisfies Partial<Record<CommandName, string>>;

/** Name of a rollout command. */
export type Verb = keyof typeof verbs;

/** Returns the request body of a rollout command. */
export function verbBody(
  verb: Verb,
  options: { canaryPercent?: number | undefined; devices: readonly string[] },
): object {
  if (verb === 'resume') return options.canaryPercent === undefined ? {} : { canary_percent: options.canaryPercent };
  if (verb === 'retry' || verb === 'skip') return { device_ids: options.devices };
  return {};
}

/** Returns the text printed on success. A retry that has found no device to retry leaves the rollout as it was. */
export const doneText = (verb: Verb, before: RolloutResponse | undefined, response: RolloutResponse): string =>
  before && before.updated_at === response.updated_at ? `has nothing to ${verb}` : verbs[verb];

/** Time until a retry that has found nothing looks again: a failure that was just reported may not be stored yet. */
const reportMilliseconds = 1000;

/**
 * Retries devices of the rollout at `path`. If there is nothing to retry, tries once more after `wait`. Returns the rollout before
 * the last attempt and after it.
 */
export async function retryRollout(
  dataPlane: Pick<DataPlane, 'call'>,
  path: string,
  body: object,
  wait: () => Promise<unknown> = () => sleep(reportMilliseconds),
): Promise<{ before: RolloutResponse; response: RolloutResponse }> {
  const before = await dataPlane.call<RolloutResponse>('GET', path);
  const retry = () => dataPlane.call<RolloutResponse>('POST', `${path}/retry`, { body });
  const response = await retry();
  if (response.updated_at !== before.updated_at) return { before, response };
  await wait();
  return { before: response, response: await retry() };
}

/** Runs a command on each rollout, continuing after errors. */
export async function runVerb(session: Session, verb: Verb): Promise<Outcome> {
  const { cluster, dataPlane, line, terminal } = session;
  const devices = line.options.get('device') ?? [];
  if (verb === 'skip' && devices.length === 0) throw usageError('skip needs --device ID', verb);
  const body = verbBody(verb, { canaryPercent: numberOption(line, 'canary-percent', 1, 100), devices });
  const format = session.option('output');
  const responses: RolloutResponse[] = [];
  let failure: PluginError | undefined;
  for (const text of line.args) {
    try {
      const rollout = await readRollout(cluster, text);
      const path = `ota/rollouts/${rolloutIdOf(rollout)}`;
      const { before, response } =
        verb === 'retry'
          ? await retryRollout(dataPlane, path, body)
          : { response: await dataPlane.call<RolloutResponse>('POST', `${path}/${verb}`, { body }) };
      responses.push(response);
      const name = qualifiedName('OtaRollout', rollout.metadata.name);
      if (format === 'name') terminal.write(`${name}\n`);
      else if (format === undefined) {
        terminal.write(`${name} ${doneText(verb, before, response)}\n`);
        if (response.message) terminal.write(`  ${response.message}\n`);
      }
    } catch (error) {
      if (!(error instanceof PluginError) || line.args.length === 1) throw error;
      failure ??= error;
      terminal.say(`error: ${text}: ${error.message}`);
    }
  }
  if (format === 'json' || format === 'yaml') {
    terminal.write(formatValue(line.args.length === 1 ? responses[0] : { rollouts: responses }, format));
  }
  return failure?.outcome ?? 'ok';
}
