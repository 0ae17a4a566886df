// devices ROLLOUT: lists the devices of a rollout and their progress.
import type { Outcome } from '../errors.ts';
import { formatAge } from '../format/duration.ts';
import type { Style } from '../format/paint.ts';
import { type Cell, formatTable } from '../format/table.ts';
import { formatValue } from '../output.ts';
import { readRollout, rolloutIdOf } from '../rollouts.ts';
import type { Session } from '../session.ts';

/** A device of a rollout as returned by the API. */
export interface RolloutDevice {
  readonly device_id: string;
  readonly state?: string;
  readonly attempts: number;
  readonly firmware_version: string;
  readonly error: string;
  readonly progress_percent?: number;
  readonly updated_at?: string;
}

const styles: Readonly<Record<string, Style>> = {
  successful: 'green',
  failure: 'red',
  timed_out: 'red',
  downloading: 'blue',
  sent: 'blue',
  rolled_back: 'yellow',
  skipped: 'gray',
};

/** Maximum length of an error in a table that is not wide. */
const errorLength = 60;

/** Formats a device as a table row. */
export function deviceRow(device: RolloutDevice, isWide: boolean, now: number): Cell[] {
  const { state = 'unknown', error } = device;
  const shown = isWide || error.length <= errorLength ? error : `${error.slice(0, errorLength - 1)}…`;
  return [
    device.device_id,
    { text: state, style: styles[state] },
    device.progress_percent === undefined ? '' : `${device.progress_percent} %`,
    String(device.attempts),
    device.firmware_version,
    formatAge(device.updated_at, now),
    shown.replaceAll(/\s+/g, ' '),
  ];
}

/** Runs the command. */
export async function runDevices(session: Session): Promise<Outcome> {
  const { cluster, dataPlane, line, terminal } = session;
  const rollout = await readRollout(cluster, line.args[0]!);
  const query = { state: session.option('state') };
  const path = `ota/rollouts/${rolloutIdOf(rollout)}/devices`;
  const devices = await dataPlane.list<RolloutDevice>(path, 'devices', query);
  const format = session.option('output');
  if (format === 'json' || format === 'yaml') terminal.write(formatValue({ devices }, format));
  else if (format === 'name') for (const { device_id } of devices) terminal.write(`${device_id}\n`);
  else if (devices.length === 0) {
    terminal.say(
      `no devices${query.state ? ` in state ${query.state}` : ''}; scheduled so far: ${rollout.status?.counts?.scheduled ?? 0}`,
    );
  } else {
    const { paint, now } = session.view();
    const rows = devices.map((device) => deviceRow(device, format === 'wide', now));
    terminal.write(
      formatTable(['DEVICE', 'STATE', 'PROGRESS', 'ATTEMPTS', 'VERSION', 'UPDATED', 'ERROR'], rows, paint),
    );
  }
  return 'ok';
}
