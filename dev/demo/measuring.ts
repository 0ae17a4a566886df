// c: the fleet replays recorded weather data while a subscriber watches one device.
import type { Schema } from '@kellet/client';
import { LiveFeed } from '../clients/live-feed.ts';
import type { RestResponse } from '../clients/rest.ts';
import type { Reading, SimulatedDevice } from '../devices/device.ts';
import { replay, weatherStations } from '../devices/readings.ts';
import { waitUntil } from '../stack/wait.ts';
import { fleetSize, readingsPerDevice, type Scene } from './scene.ts';

/** Points per request, so that the fleet's readings need only a tenth of the tenant's request limit. */
const pointsPerRequest = 56;

/** Normalises a reading for comparing what was sent with what is returned. */
const essence = ({ timestamp, numeric_values, string_values }: Reading) =>
  JSON.stringify([Date.parse(timestamp), Object.entries(numeric_values).sort(), Object.entries(string_values).sort()]);

/** Returns all points of a device, oldest first. */
export const readHistory = (scene: Scene, deviceId: string): Promise<Schema<'HistoryPoint'>[]> =>
  scene.admin.list<Schema<'HistoryPoint'>>(`/api/v1/telemetry/${deviceId}`, 'points', { page_size: 1000 });

/** c. Sends at least 5,000 points; those of the watched device must reach the subscriber. */
export async function measure(scene: Scene): Promise<void> {
  const { fleet, terminal, promises } = scene;
  const wanted = fleetSize * readingsPerDevice;
  terminal.chapter('c', `The fleet replays ${wanted.toLocaleString('en')} daily observations of Seattle and New York`);
  const stations = weatherStations();
  const readingsOf = (index: number) => replay(stations, index, readingsPerDevice);
  const watched = fleet.devices[0]!;
  // A rejected subscriber breaks one promise but does not end the demo.
  const feed = await openFeed(scene, watched.deviceId);
  try {
    const sent = await fleet.send(
      (_, index) => readingsOf(index),
      pointsPerRequest,
      (accepted) => terminal.count('accepted', accepted, wanted),
    );
    const isEnough = sent.accepted === wanted && sent.accepted >= 5000 && sent.rejected === 0;
    const accepted = `${sent.accepted.toLocaleString('en')} accepted, ${sent.rejected} rejected`;
    promises.observe('ingest', isEnough, `${accepted}, ${sent.requests} requests`);

    if (feed) await observeFeed(scene, feed, watched);
  } finally {
    feed?.close();
  }
  await compareHistory(scene, watched, readingsOf(0));
}

/** Waits for the last points of the watched device. */
async function observeFeed({ promises, terminal }: Scene, feed: LiveFeed, watched: SimulatedDevice): Promise<void> {
  const received = () => feed.points(watched.deviceId).length;
  const patience = { what: 'the live feed', timeoutMilliseconds: 5000 };
  await waitUntil(() => received() >= readingsPerDevice, patience).catch(() => undefined);
  promises.observe('live', received() === readingsPerDevice, `${received()} of ${readingsPerDevice}`);
  terminal.say(`   the subscriber received ${received()} of ${readingsPerDevice} points of ${watched.name}`);
}

async function openFeed({ admin, promises }: Scene, deviceId: string): Promise<LiveFeed | undefined> {
  try {
    const feed = await LiveFeed.open(admin.base, admin.token);
    await feed.subscribe({ channel: 'telemetry.live', device_id: deviceId });
    return feed;
  } catch (error) {
    promises.observe('live', false, error instanceof Error ? error.message : String(error));
    return undefined;
  }
}

/** Compares the watched device's history with what was sent, and checks the remaining request limit. */
async function compareHistory(scene: Scene, watched: SimulatedDevice, record: readonly Reading[]): Promise<void> {
  const { promises, admin } = scene;
  const history = await readHistory(scene, watched.deviceId);
  const isEqual = history.map(essence).join() === record.map(essence).join();
  promises.observe('history', isEqual, `${history.length} points, ${isEqual ? 'equal' : 'NOT equal'} to the record`);
  observeRateLimit(scene, await admin.send('GET', `/api/v1/telemetry/${watched.deviceId}/latest`));
}

/** Checks the rate limit headers of a response. */
function observeRateLimit({ promises }: Scene, { status, headers }: RestResponse): void {
  const [limit, left] = ['limit', 'remaining'].map((name) => Number(headers.get(`x-ratelimit-${name}`) ?? NaN));
  promises.observe('rateLimit', status === 200 && limit === 1000 && left! > 0, `limit ${limit}, ${left} left`);
}
